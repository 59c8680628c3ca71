"""Every producer to every consumer: right, value for value, and shared or copied as expected, or
refused with the expected reason.

Expectations are data. A case says what is special about its memory (`CASES`), a producer may say
that its own memory differs (`PRODUCERS`), and a consumer lists what it cannot take and what then
happens (`CONSUMERS`); its first row that names a trait of the memory holds, and without one the
memory is shared. The numbers are the lines of the list of known defects that the adapters' quirks
also count by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import dlbridge
from dlbridge import ExchangeError
from peers.readers import filled, has, memory, read

if not all(map(has, ("torch", "jax", "tensorflow"))):
    pytest.skip("torch, jax and tensorflow are not installed together", allow_module_level=True)

ml_dtypes = pytest.importorskip("ml_dtypes")

# ---- the cases ---------------------------------------------------------------------------------


class Case(NamedTuple):
    """Memory, and what is special about it."""

    make: Callable[[], np.ndarray[Any, Any]]
    traits: tuple[str, ...] = ()


def _readonly() -> np.ndarray[Any, Any]:
    array = filled((4, 6), "float32")
    array.flags.writeable = False
    return array


def _broadcast() -> np.ndarray[Any, Any]:
    return np.lib.stride_tricks.as_strided(filled((6,), "float32"), (4, 6), (0, 4))


def _wide() -> np.ndarray[Any, Any]:
    return np.add(filled((2, 3), "int64"), 2**40, out=memory((2, 3), "int64"))


CASES = {
    "aligned": Case(lambda: filled((4, 6), "float32")),
    "slice": Case(lambda: filled((4, 6), "float32")[1:], ("misaligned",)),
    "transposed": Case(lambda: filled((4, 6), "float32").T, ("strided",)),
    "gaps": Case(lambda: filled((4, 6), "float32")[::2], ("strided", "gaps")),
    "negative": Case(
        lambda: filled((4, 6), "float32")[:, ::-1], ("strided", "gaps", "negative", "misaligned")
    ),
    "readonly": Case(_readonly, ("readonly",)),
    "empty": Case(lambda: memory((0, 3), "float32"), ("empty",)),
    "scalar": Case(lambda: filled((1,), "float32").reshape(()), ("scalar",)),
    "bfloat16": Case(lambda: filled((2, 3), ml_dtypes.bfloat16), ("bfloat16",)),
    "float8": Case(lambda: filled((2, 3), ml_dtypes.float8_e4m3fn), ("float8",)),
    "int64": Case(_wide, ("int64",)),
    "bool": Case(lambda: filled((2, 3), "bool"), ("bool",)),
    "complex64": Case(lambda: filled((2, 3), "complex64"), ("complex64",)),
    "misaligned": Case(lambda: filled((2, 3), "float32", offset=4), ("misaligned",)),
    "unaligned": Case(lambda: filled((2, 3), "float32", offset=1), ("misaligned",)),
    "broadcast": Case(_broadcast, ("strided", "gaps")),
}
DTYPE_TRAITS = {"bfloat16", "float8", "int64", "bool", "complex64", "empty", "scalar"}

# ---- the producers -----------------------------------------------------------------------------


class Maker(NamedTuple):
    """How a library makes a case: of an array, for these cases; `traits` are of all its memory."""

    make: Callable[[np.ndarray[Any, Any]], Any]
    cases: tuple[str, ...]
    materialises: bool = False  # its arrays are always compact, aligned and without marks
    traits: tuple[str, ...] = ()


def _torch(array: np.ndarray[Any, Any]) -> Any:
    import torch

    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", "float8_e4m3fn"):
        bits = torch.from_numpy(array.view(f"uint{array.itemsize * 8}"))
        return bits.view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def _jax(array: np.ndarray[Any, Any]) -> Any:
    import jax.numpy as jnp

    return jnp.array(array)


def _tensorflow(array: np.ndarray[Any, Any]) -> Any:
    import tensorflow as tf

    return tf.constant(array)


def _tvm(array: np.ndarray[Any, Any]) -> Any:
    import tvm_ffi

    if array.dtype.name in ("bfloat16", "float8_e4m3fn"):
        return tvm_ffi.from_dlpack(_torch(array))
    return tvm_ffi.from_dlpack(array)


def _mlx(array: np.ndarray[Any, Any]) -> Any:
    import mlx.core as mx

    if array.dtype.name == "bfloat16":
        return mx.array(array.view("uint16")).view(mx.bfloat16)
    whole = mx.array(array.copy())
    views: dict[tuple[int, ...], Callable[[], Any]] = {  # MLX copies its imports: a new view
        (24, 4, 3): lambda: mx.array(np.vstack([array[:2], array]))[2:],
        (4, 24, 6): lambda: mx.array(np.ascontiguousarray(array.T)).T,
        (48, 4, 2): lambda: mx.array(np.repeat(array, 2, axis=0))[::2],
        (24, -4, 4): lambda: mx.array(np.ascontiguousarray(array[:, ::-1]))[:, ::-1],
        (0, 4, 4): lambda: mx.broadcast_to(whole[:1], array.shape),
    }
    return views.get((*array.strides, *array.shape[:1]), lambda: whole)()


def _pyarrow(array: np.ndarray[Any, Any]) -> Any:
    import pyarrow as pa

    return pa.Tensor.from_numpy(array)


def _strict(array: np.ndarray[Any, Any]) -> Any:
    import array_api_strict as strict

    return strict.asarray(array, copy=False)


_LAYOUTS = ("aligned", "slice", "transposed", "gaps", "broadcast", "misaligned", "unaligned")
_DTYPES = ("int64", "bool", "complex64")
PRODUCERS = {
    "numpy": Maker(lambda array: array, tuple(CASES)),
    "torch": Maker(_torch, (*_LAYOUTS[:-1], "empty", "scalar", "bfloat16", "float8", *_DTYPES)),
    "jax": Maker(
        _jax,
        ("aligned", "slice", "empty", "scalar", "bfloat16", "float8", "bool", "complex64"),
        materialises=True,
    ),
    "tensorflow": Maker(
        _tensorflow,
        ("aligned", "slice", "empty", "scalar", "bfloat16", *_DTYPES),
        materialises=True,
    ),
    "tvm": Maker(
        _tvm,
        (*_LAYOUTS, "negative", "empty", "scalar", "bfloat16", "float8", "int64", "bool"),
    ),
    "mlx": Maker(
        _mlx,
        (*_LAYOUTS[:-2], "negative", "empty", "scalar", "bfloat16", *_DTYPES),
        traits=("misaligned",),
    ),
    "pyarrow": Maker(
        _pyarrow, ("aligned", "slice", "transposed", "gaps", "readonly", "empty", "int64")
    ),
    "strict": Maker(_strict, (*_LAYOUTS, "negative", "empty", "scalar", *_DTYPES)),
    "dlbridge": Maker(dlbridge.from_dlpack, tuple(CASES)),
}
MODULES = {"tvm": "tvm_ffi", "strict": "array_api_strict", "mpi": "mpi4py"}

# ---- the consumers -----------------------------------------------------------------------------


class Row(NamedTuple):
    """Memory with this trait is refused for a reason, or copied by somebody for a reason."""

    trait: str
    refused: str = ""
    copied_by: str = ""
    why: str = ""
    fact: int = 0


def _copied(trait: str, why: str, fact: int, by: str = "dlbridge") -> Row:
    return Row(trait, copied_by=by, why=why, fact=fact)


EMPTY = Row("empty")  # without elements every consumer gets memory that fits
CONSUMERS: dict[str, tuple[Row, ...]] = {
    "numpy": (),
    "torch": (EMPTY, Row("readonly", "readonly", fact=7), _copied("negative", "strides", 1)),
    "jax": (
        EMPTY,
        Row("int64", "dtype", fact=11),
        _copied("gaps", "strides", 30),
        _copied("misaligned", "alignment", 31),
    ),
    "tensorflow": (
        EMPTY,
        Row("float8", copied_by="tensorflow", why="dtype"),
        _copied("strided", "strides", 30),
        _copied("misaligned", "alignment", 2),
    ),
    "tvm": (
        EMPTY,
        Row("complex64", "dtype"),
        Row("readonly", "readonly", fact=20),
    ),
    "mlx": (
        Row("float8", "dtype", fact=11),
        _copied("negative", "strides, copy_required", 30, by="dlbridge, mlx"),
        _copied("", "copy_required", 31, by="mlx"),
    ),
    "pyarrow": (
        EMPTY,
        Row("bfloat16", "dtype", fact=22),
        Row("float8", "dtype", fact=22),
        Row("bool", "dtype", fact=30),
        Row("complex64", "dtype", fact=30),
        _copied("negative", "strides", 30),
    ),
    "dlbridge": (),
}


def traits_of(producer: str, case: str) -> set[str]:
    """Return what is special about a case's memory as this producer makes it."""
    maker = PRODUCERS[producer]
    traits = set(CASES[case].traits) | set(maker.traits) | {""}
    return (traits & DTYPE_TRAITS) | {""} if maker.materialises else traits


def expected(producer: str, consumer: str, case: str) -> Row:
    """Return the row that holds, or an empty one: shared."""
    if producer == consumer:
        return Row("")  # an object of its own is returned as it is
    traits = traits_of(producer, case)
    return next((row for row in CONSUMERS[consumer] if row.trait in traits), Row(""))


CELLS = [(producer, case) for producer, maker in PRODUCERS.items() for case in maker.cases]
TABLE = [(producer, consumer, case) for producer, case in CELLS for consumer in CONSUMERS]


@pytest.mark.parametrize(("producer", "consumer", "case"), TABLE)
def test_exchange(producer: str, consumer: str, case: str) -> None:
    for library in (producer, consumer):
        if not has(MODULES.get(library, library)):
            pytest.skip(f"{library} is not installed")
    array = CASES[case].make()
    x = PRODUCERS[producer].make(array)
    row = expected(producer, consumer, case)
    if row.refused:
        _check_refused(x, consumer, row.refused)
    else:
        _check_arrived(x, producer, consumer, array, row)


def _check_refused(x: Any, consumer: str, reason: str) -> None:
    calls = (dlbridge.explain, dlbridge.convert, lambda x, to: dlbridge.convert(x, to, copy=None))
    for call in calls:
        with pytest.raises(ExchangeError) as caught:
            call(x, consumer)
        assert caught.value.reason == reason


def _check_arrived(
    x: Any, producer: str, consumer: str, array: np.ndarray[Any, Any], row: Row
) -> None:
    values, address = read(producer, x)
    assert values == array.tobytes(), "the test's own producer is wrong"
    with dlbridge.receipts() as log:
        slow = dlbridge.convert(x, consumer)
    fast = dlbridge.convert(x, consumer)
    foreseen = dlbridge.explain(x, consumer)
    (receipt,) = log
    for result in (slow, fast):
        assert tuple(result.shape) == array.shape
        got, where = read(consumer, result)
        assert got == values
        if array.size and producer != consumer:
            assert (where == address) == (not row.copied_by), "shared or copied, but not as said"
    for said in (receipt, foreseen):
        assert (said.shared, said.copied_by, said.why) == (
            not row.copied_by,
            row.copied_by or None,
            row.why or None,
        )


NEVER_SHARED = [
    (producer, consumer, case)
    for producer, consumer, case in TABLE
    if expected(producer, consumer, case).copied_by
]


@pytest.mark.parametrize(("producer", "consumer", "case"), NEVER_SHARED)
def test_a_copy_is_refused_where_forbidden(producer: str, consumer: str, case: str) -> None:
    for library in (producer, consumer):
        if not has(MODULES.get(library, library)):
            pytest.skip(f"{library} is not installed")
    x = PRODUCERS[producer].make(CASES[case].make())
    with pytest.raises(ExchangeError) as caught:
        dlbridge.convert(x, consumer, copy=False)
    assert caught.value.reason == expected(producer, consumer, case).why.split(", ")[0]
    assert "copy=False" in str(caught.value)


# ---- consumers without an adapter: they meet a Tensor ------------------------------------------


@pytest.fixture(scope="module")
def world() -> Any:
    mpi4py = pytest.importorskip("mpi4py")
    mpi4py.rc.initialize = True
    return pytest.importorskip("mpi4py.MPI", exc_type=(ImportError, RuntimeError)).COMM_SELF


@pytest.mark.parametrize(("producer", "case"), CELLS)
def test_mpi_sends_any_tensor(producer: str, case: str, world: Any) -> None:
    if not has(MODULES.get(producer, producer)):
        pytest.skip(f"{producer} is not installed")
    array = CASES[case].make()
    x = PRODUCERS[producer].make(array)
    tensor = dlbridge.convert(x, "dlbridge", layout="contiguous")
    arrived = np.zeros(array.nbytes, np.uint8)
    world.Sendrecv(tensor, 0, 0, arrived, 0, 0)
    assert arrived.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("producer", "case"), [cell for cell in CELLS if cell[1] not in ("bfloat16", "float8")]
)
def test_array_api_strict_takes_a_tensor(producer: str, case: str) -> None:
    strict = pytest.importorskip("array_api_strict")
    if not has(MODULES.get(producer, producer)):
        pytest.skip(f"{producer} is not installed")
    array = CASES[case].make()
    x = PRODUCERS[producer].make(array)
    result = strict.from_dlpack(dlbridge.from_dlpack(x))
    values, where = read("strict", result)
    assert values == array.tobytes()
    assert not array.size or where == read(producer, x)[1]
