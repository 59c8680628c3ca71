"""One exchange between two frameworks, made and judged in a process that may crash on it.

`serve` is the main function of such a process. It imports frameworks, but never uses them: it forks
a server that does, and forks the next one when the server crashes, which is faster than importing
everything once more.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import resource
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dlbridge import registry
from dlbridge.check.inspection import CapsuleReport, inspect
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.exchange import adapter
from dlbridge.exchange.adapter import Expressions
from dlbridge.exchange.exchange import convert
from dlbridge.exchange.protocol import VERSION
from dlbridge.shape import row_major

# From good to bad; "absent" is no judgement: the producer makes no such tensor.
OUTCOMES = ("shared", "copied", "refused", "wrong", "crashed", "absent")
WAYS = ("own", "dlbridge")  # the frameworks' own functions, and `dlbridge.convert`

DTYPES = (
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)
SIZES: dict[str, tuple[int, ...]] = {
    "24 elements": (4, 6),
    "2^18 elements": (512, 512),
    "1 element": (1, 1),
    "no elements": (0, 6),
    "scalar": (),
}
FLAGS = ("plain", "read-only", "copy=True")


class Layout(NamedTuple):
    """A view `x[...]`: the shape of the array that it is taken of, and the expression."""

    grow: Callable[[int, int], tuple[int, ...]]
    view: str


LAYOUTS = {
    "row-major": Layout(lambda n, m: (n, m), "x"),
    "transposed": Layout(lambda n, m: (m, n), "x.T"),
    "offset": Layout(lambda n, m: (n + 1, m), "x[1:]"),
    "gaps": Layout(lambda n, m: (2 * n, m), "x[::2]"),
    "reversed": Layout(lambda n, m: (n, m), "x[:, ::-1]"),
    "broadcast": Layout(lambda _n, m: (m,), "broadcast(x, shape)"),  # of NumPy arrays alone
}


class Case(NamedTuple):
    """A tensor to be exchanged: a key of `DTYPES`, `LAYOUTS`, `SIZES` and `FLAGS` each."""

    dtype: str
    layout: str
    size: str
    flag: str

    def __str__(self) -> str:
        return ", ".join(self)


def make_cases(*, quick: bool) -> list[Case]:
    """Return the tensors of the matrix.

    All are every dtype in every layout, size and with every flag; a scalar has one layout. Quick
    are every dtype in every layout, and float32 with all the rest, one at a time.
    """
    cases = []
    for size in SIZES:
        for layout in LAYOUTS if SIZES[size] else ("row-major",):
            cases += [Case(dtype, layout, size, flag) for flag in FLAGS for dtype in DTYPES]
    return [case for case in cases if not quick or _is_quick(case)]


def _is_quick(case: Case) -> bool:
    usual = ("float32", "row-major", "24 elements", "plain")
    differing = [
        axis for axis, (one, two) in enumerate(zip(case, usual, strict=True)) if one != two
    ]
    return len(differing) < 2 or differing == [0, 1]


# ---- helpers of expressions ----------------------------------------------------------------------


def bits(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of a type that NumPy itself lacks as unsigned integers."""
    return a if a.dtype.isbuiltin == 1 else a.view(f"uint{8 * a.itemsize}")


def typed(data: np.ndarray[Any, Any], name: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the bytes of an array as an array of another dtype and shape."""
    found: np.ndarray[Any, Any] = np.frombuffer(data.tobytes(), dtype_of(name))
    return found.reshape(tuple(shape))


def address(x: Any) -> int:
    """Return the address that the capsule of `x` names."""
    report = read(x)
    return (report.data or 0) + (report.byte_offset or 0)


def values(x: Any) -> np.ndarray[Any, Any]:
    """Return the values in the memory that the capsule of `x` names."""
    report = read(x)
    shape, triple = report.shape or (), report.dtype or (0, 0, 0)
    strides = row_major(shape) if report.strides is None else report.strides
    start = (report.data or 0) + (report.byte_offset or 0)
    dtype = dtype_of(DType(triple).name)
    if 0 in shape:
        return np.empty(shape, dtype)
    steps = [step * dtype.itemsize for step in strides]
    reach = [(extent - 1) * step for extent, step in zip(shape, steps, strict=True)]
    low, high = sum(min(0, each) for each in reach), sum(max(0, each) for each in reach)
    kind = ctypes.c_uint8 * (high - low + dtype.itemsize)
    memory = np.ctypeslib.as_array(kind.from_address(start + low))
    return np.ndarray(shape, dtype, memory, -low, steps).copy()


def broadcast(x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a writable view of one row as if it were many."""
    return np.ndarray(shape, x.dtype, x.view(np.uint8), 0, (0, *x.strides))


HELPERS: dict[str, Any] = {
    "np": np,
    "bits": bits,
    "typed": typed,
    "address": address,
    "values": values,
    "broadcast": broadcast,
}


def read(x: Any) -> CapsuleReport:
    """Return what the newest capsule of `x` says."""
    try:
        capsule = x.__dlpack__(max_version=VERSION)
    except TypeError:
        capsule = x.__dlpack__()
    report = inspect(capsule).capsule
    if not isinstance(report, CapsuleReport):
        raise ExchangeError("producer", f"__dlpack__ gave no tensor: {report}")
    return report


def dtype_of(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype, or that of ml_dtypes."""
    found: np.dtype[Any] = adapter.adapter("numpy").make_dtype(name)
    return found


# ---- tensors -------------------------------------------------------------------------------------


class AbsentError(Exception):
    """The producer makes no such tensor."""


class Made(NamedTuple):
    """A tensor to be exchanged: itself, the values that it must have, and NumPy's memory of it."""

    x: Any
    expected: np.ndarray[Any, Any]
    base: np.ndarray[Any, Any]


def make_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return values that no narrower type can hold, in memory aligned to 64 bytes."""
    kind = dtype_of(dtype)
    count = int(np.prod(shape, dtype=int))
    raw = np.zeros(count * kind.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array = raw[start : start + count * kind.itemsize].view(kind).reshape(shape)
    numbers: np.ndarray[Any, Any] = np.arange(count).reshape(shape) % 97
    if dtype == "bool":
        numbers = numbers % 3 == 0
    elif dtype in ("int64", "uint64"):
        numbers = numbers + 2**40
    elif dtype in ("float64", "complex128"):
        numbers = numbers / 3
    array[...] = numbers.astype(kind)
    return array


def make(expressions: Expressions, case: Case, scope: dict[str, Any]) -> Made:
    """Return the tensor of a case.

    Raises:
        AbsentError: the framework makes none, or another one than was asked for.
    """
    layout, shape = LAYOUTS[case.layout], SIZES[case.size]
    if not expressions.is_view and (case.layout == "broadcast" or case.flag == "read-only"):
        raise AbsentError("its arrays are made in memory of its own")
    base = make_array(case.dtype, layout.grow(shape[0], shape[1]) if shape else ())
    view = evaluate(layout.view, scope, x=base, shape=shape)
    expected = view.copy()
    if case.flag == "read-only":
        view.flags.writeable = False
    try:
        if expressions.is_view:
            x = evaluate(expressions.make, scope, a=view)
        else:
            x = evaluate(layout.view, scope, x=evaluate(expressions.make, scope, a=base))
        found = np.asarray(evaluate(expressions.values, scope, x=x))
    except Exception as error:
        raise AbsentError(text_of(error)) from error
    difference = compare(found, expected)
    if difference:
        raise AbsentError(f"it makes another one: {difference}")
    return Made(x, expected, base)


def read_traits(x: Any) -> list[str]:
    """Return what is special about a tensor, as its newest capsule says."""
    try:
        report = read(x)
    except Exception:  # noqa: BLE001  (it exports nothing, so nothing can be said of its export)
        return []
    shape, strides = report.shape or (), report.strides
    wide = [axis for axis, extent in enumerate(shape) if extent != 1]
    strides = row_major(shape) if strides is None else strides
    compact = row_major(shape)
    signs = {
        "legacy": report.kind == "legacy",
        "read-only": "READ_ONLY" in report.flags,
        "byte_offset": bool(report.byte_offset),
        "misaligned": (report.alignment or 64) < 64 and 0 not in shape,
        "strided": 0 not in shape and any(strides[axis] != compact[axis] for axis in wide),
        "negative": any(step < 0 for step in strides),
        "empty": 0 in shape,
    }
    return [name for name, holds in signs.items() if holds]


def compare(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str:
    """Return how two arrays differ, "" if they do not."""
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype} instead of {expected.dtype}"
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if found.tobytes() != expected.tobytes():
        differing = np.count_nonzero(_as_bytes(found) != _as_bytes(expected))
        return f"{differing} of {found.nbytes} bytes differ"
    return ""


def _as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(array.tobytes(), np.uint8)


# ---- one exchange --------------------------------------------------------------------------------


class Exchange(NamedTuple):
    """One cell: from a framework to another, of a case, in one of `WAYS`."""

    source: str
    target: str
    way: str
    case: Case


def run(exchange: Exchange, tell: Callable[[dict[str, Any]], None]) -> tuple[str, str]:
    """Return outcome and reason; before the exchange, `tell` the traits of the tensor."""
    case = exchange.case
    source, target = find_expressions(exchange.source), find_expressions(exchange.target)
    scope = HELPERS | import_modules(source) | import_modules(target)
    if exchange.way == "own" and case.flag == "copy=True" and not target.copied:
        return "absent", f"no argument asks {exchange.target} for a copy"
    try:
        x, expected, base = make(source, case, scope)
    except AbsentError as absent:
        return "absent", f"{exchange.source}: {absent}"
    traits = read_traits(x)
    if case.flag == "read-only" and "read-only" not in traits:
        return "absent", f"{exchange.source}: it marks no memory as read-only"
    tell({"traits": traits})
    before = find_address(source, x, scope)
    try:
        result = take(exchange, target, x, scope)
    except Exception as error:  # noqa: BLE001  (whatever a framework raises)
        reason = f"{error.reason}: " if isinstance(error, ExchangeError) else ""
        return "refused", reason + text_of(error)
    is_shared = before == find_address(target, result, scope)
    why = find_fault(target, result, expected, scope)
    if not why and is_shared and expected.size:
        if case.flag == "copy=True":
            why = "it shares memory although a copy was asked for"
        elif case.flag == "read-only" and is_written(result, base):
            why = "read-only memory was written through it"
    use(target, result, scope)
    if not why and case.flag != "read-only":
        del x, base
        gc.collect()
        why = find_fault(target, result, expected, scope)
        why = f"once the source is gone, {why}" if why else ""
    if why:
        return "wrong", why
    return ("shared", "") if is_shared or not expected.size else ("copied", "")


def take(exchange: Exchange, target: Expressions, x: Any, scope: dict[str, Any]) -> Any:
    """Return the consumer's array of `x`."""
    is_copy = exchange.case.flag == "copy=True"
    if exchange.way == "dlbridge":
        return convert(x, exchange.target, copy=True) if is_copy else convert(x, exchange.target)
    expression = target.copied if is_copy else target.from_dlpack
    return evaluate(expression.format("x"), scope, x=x)


def find_fault(
    target: Expressions, result: Any, expected: np.ndarray[Any, Any], scope: dict[str, Any]
) -> str:
    """Return what is wrong with the consumer's array, "" if nothing is."""
    try:
        found = np.asarray(evaluate(target.values, scope, x=result))
    except Exception as error:  # noqa: BLE001
        return f"it cannot be read: {text_of(error)}"
    return compare(found, expected)


def find_address(expressions: Expressions, x: Any, scope: dict[str, Any]) -> int | None:
    """Return the address of an array, None where its framework does not give it."""
    try:
        found: int = evaluate(expressions.address, scope, x=x)
    except Exception:  # noqa: BLE001
        return None
    return found


def is_written(result: Any, base: np.ndarray[Any, Any]) -> bool:
    """Return whether memory changes when the consumer's array is assigned to."""
    before = base.tobytes()
    for value in (1, 0):  # one of them differs from what is there
        try:
            result[...] = value
        except Exception:  # noqa: BLE001  (it is protected)
            return False
        if base.tobytes() != before:
            return True
    return False


def use(target: Expressions, result: Any, scope: dict[str, Any]) -> None:
    """Compute with an array: some frameworks crash on memory only then."""
    try:
        np.asarray(evaluate(target.values, scope, x=result + result))
    except Exception:  # noqa: BLE001  (not every array can be added to)
        return


def find_expressions(name: str) -> Expressions:
    """Return how a framework is used without dlbridge."""
    found = adapter.adapter(name).expressions
    if found is None:
        raise AbsentError(f"the adapter of {name} has no expressions")
    return found


def evaluate(expression: str, scope: dict[str, Any], **names: Any) -> Any:
    """Return the value of an expression of an adapter, or of `LAYOUTS`."""
    return eval(expression, scope | names)  # noqa: S307  (ours, or of who registered a framework)


def import_modules(expressions: Expressions) -> dict[str, Any]:
    """Return the modules of expressions by their names there."""
    return {name: import_module(module) for name, module in expressions.modules.items()}


def text_of(error: BaseException) -> str:
    """Return the type of an exception and its first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


# ---- the process ---------------------------------------------------------------------------------

_LOAD = 3  # exit status of a server that was asked to load a framework


def serve() -> None:
    """Answer the requests on the standard input, one a line, until it ends.

    `["load"]` is followed by a row of the registry; the framework is imported by this process.
    `["run", …]`, an Exchange, is answered by a forked server: first with the traits of the tensor,
    then with its outcome and reason. A server that dies is answered with its status.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = io.FileIO(0)  # not buffered: the next process reads on where this one ended
    answers = os.dup(1)
    os.dup2(2, 1)  # frameworks may print

    def tell(answer: dict[str, Any]) -> None:
        os.write(answers, json.dumps(answer).encode() + b"\n")

    while True:
        process = os.fork()
        if process == 0:
            os._exit(_serve_runs(requests, tell))
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status == 0:
            return
        if status == _LOAD:
            tell(_load(registry.Row(*json.loads(requests.readline()))))
        else:
            tell({"status": status})


def _serve_runs(requests: io.FileIO, tell: Callable[[dict[str, Any]], None]) -> int:
    gc.freeze()  # what was imported is not looked through in each collection
    while line := requests.readline():
        kind, *fields = json.loads(line)
        if kind == "load":
            return _LOAD
        source, target, way, case = fields
        outcome, reason = run(Exchange(source, target, way, Case(*case)), tell)
        gc.collect()
        tell({"outcome": outcome, "reason": reason})
    return 0


def _load(row: registry.Row) -> dict[str, Any]:
    if all(row.name != known.name for known in registry.rows()):
        package, roots = row.package, tuple(row.roots)
        registry.register(row.name, package, roots, title=row.title, noun=row.noun, func=row.func)
    try:
        import_modules(find_expressions(row.name))
        module = adapter.adapter(row.name).import_module()
    except BaseException as error:  # noqa: BLE001  (whatever an installation raises)
        return {"error": f"cannot be imported: {text_of(error)}"}
    return {"version": str(getattr(module, "__version__", ""))}
