"""TensorFlow's answers, recorded under tests/data: `make record` asks TensorFlow again.

A test asks `answers(question, ask)`. The fast ring gets the recorded answer; the long ring gets it
and a live one from `ask()`. An answer is made of lists, tuples and dicts, of None, numbers, text,
bytes, arrays and classes of errors.
"""

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent / "data"


class Answers:
    """The recorded answers that one test file needs.

    Attributes:
        path: the file of records.
        record: whether TensorFlow is asked, and its answers are recorded.
        keep: whether the file keeps its answers to what is not asked this time.
        live: whether TensorFlow is asked besides.
    """

    def __init__(
        self, path: Path, *, record: bool = False, keep: bool = False, live: bool = False
    ) -> None:
        self.path, self.record, self.keep, self.live = path, record, keep, live
        self._recorded: dict[str, Any] = {}
        self._live: dict[str, Any] = {}
        if not record and path.exists():
            self._recorded = json.loads(lzma.decompress(path.read_bytes()))

    def __call__(
        self, question: str, ask: Callable[[], Any], *inputs: Any, live: bool = True
    ) -> Iterator[Any]:
        """Yield the recorded answer, and in the long ring TensorFlow's own.

        Args:
            question: what is asked: a name that no other question of the file has.
            ask: asks TensorFlow.
            *inputs: what the answer depends on: a record for other inputs does not count.
            live: False if a live answer cannot be trusted, because of a defect of TensorFlow.
        """
        key = f"{question} {digest(inputs)}" if inputs else question
        if self.record and key not in self._recorded:
            self._recorded[key] = encode(ask())
        if key not in self._recorded:
            raise LookupError(f"TensorFlow's answer to {key!r} is not recorded: run `make record`")
        yield decode(self._recorded[key])
        if self.live and live:
            if key not in self._live:
                self._live[key] = ask()
            yield self._live[key]

    def save(self) -> None:
        """Write what was recorded: the same answers give the same bytes."""
        kept = {}
        if self.keep and self.path.exists():
            kept = json.loads(lzma.decompress(self.path.read_bytes()))
        text = json.dumps({**kept, **self._recorded}, sort_keys=True, separators=(",", ":"))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(lzma.compress(text.encode()))


def digest(inputs: tuple[Any, ...]) -> str:
    """Return a short text that other inputs would not have."""
    return hashlib.sha256(json.dumps(encode(inputs)).encode()).hexdigest()[:8]


# ---- as JSON: what JSON does not have is an object with one key, the kind ------------------------


def encode(value: Any) -> Any:
    """Return `value` as JSON has it."""
    if isinstance(value, np.generic) and value.dtype.kind not in "SU":
        return {"scalar": _array_text(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(each)] for key, each in value.items()]}
    if isinstance(value, type):
        return {"error": value.__name__}
    array = np.asarray(value)
    if array.dtype.hasobject:
        return {"objects": [array.shape, [encode(each) for each in array.flat]]}
    return {"array": _array_text(array)}


def _array_text(array: Any) -> list[Any]:
    return [array.dtype.name, array.shape, base64.b64encode(array.tobytes()).decode()]


def decode(value: Any) -> Any:
    """Return what `encode` was given."""
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _DECODERS[kind](content)


def _objects(content: Any) -> Any:
    shape, values = content
    array = np.empty(len(values), object)
    array[:] = [decode(each) for each in values]
    return array.reshape(shape)


def _array(content: Any) -> Any:
    name, shape, data = content
    try:
        dtype = np.dtype(name)
    except TypeError:  # bfloat16 and other dtypes that NumPy gets from ml_dtypes
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "bytes": lambda text: text.encode("latin-1"),
    "dict": lambda pairs: {decode(key): decode(each) for key, each in pairs},
    "error": lambda name: getattr(builtins, name),
    "tuple": lambda values: tuple(decode(each) for each in values),
    "objects": _objects,
    "array": _array,
    "scalar": lambda content: _array(content)[()],
}
