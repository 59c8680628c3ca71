"""Reductions: MPI's own operators where they are right, operators of ours where not.

MPI has no float16, bfloat16, float8 and no bool of one byte that every library adds alike, and its
minimum and maximum lose a NaN or keep it depending on the order of ranks. There MPI gets an
operator that calls NumPy, with ml_dtypes for the small floats: each step is rounded to the dtype.

Values that follow a ballot, or are part of it, are reduced in C, by the loops of the same ufuncs.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.dtype import CODES, DType, make_dtype
from dlbridge.errors import ArgumentError
from dlbridge.mpi.channel import Channel
from dlbridge.mpi.quick import QUICK, learn_call
from dlbridge.mpi.values import Kind, dtype_of
from dlbridge.signals import not_from_handler
from dlbridge.tensor.values import raw_bytes


class Reduction(NamedTuple):
    """One reduction.

    Attributes:
        ufunc: NumPy's function.
        operator: MPI's name of it.
        classes: the classes of dtypes that it takes.
        native: those for which MPI's operator may be taken, where MPI has the dtype.
    """

    ufunc: np.ufunc
    operator: str
    classes: frozenset[str]
    native: frozenset[str]


_INTEGER = frozenset(("integer",))
_BITS = _INTEGER | {"bool"}
_ORDERED = _BITS | {"real"}
_INEXACT = frozenset(("real", "complex"))
_ADDED = _INTEGER | _INEXACT
REDUCTIONS = {
    "sum": Reduction(np.add, "SUM", _ADDED | {"bool"}, _ADDED),
    "mean": Reduction(np.add, "SUM", _INEXACT, _INEXACT),  # then `divide`
    "prod": Reduction(np.multiply, "PROD", _ADDED | {"bool"}, _ADDED),
    "min": Reduction(np.minimum, "MIN", _ORDERED, _INTEGER),
    "max": Reduction(np.maximum, "MAX", _ORDERED, _INTEGER),
    "and": Reduction(np.bitwise_and, "BAND", _BITS, _INTEGER),
    "or": Reduction(np.bitwise_or, "BOR", _BITS, _INTEGER),
    "xor": Reduction(np.bitwise_xor, "BXOR", _BITS, _INTEGER),
}
# NumPy's own, by number, since characters of ml_dtypes are the same.
_NUMBERS = {np.dtype(code).num: np.dtype(code) for code in "?bhilqBHILQefdFD"}
# MPI's names of the dtypes that it computes with as everybody does.
_TYPES = {
    "int8": "INT8_T",
    "int16": "INT16_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
    "uint8": "UINT8_T",
    "uint16": "UINT16_T",
    "uint32": "UINT32_T",
    "uint64": "UINT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}


def find(call: str, op: object) -> Reduction:
    """Return the reduction of a name.

    Raises:
        ArgumentError: there is none.
    """
    if not isinstance(op, str) or op not in REDUCTIONS:
        raise ArgumentError(f"{call}: op must be one of {', '.join(REDUCTIONS)}, got {op!r}")
    return REDUCTIONS[op]


def _class(dtype: DType) -> str:
    if dtype.is_bool:
        return "bool"
    if dtype.is_integer:
        return "integer"
    return "complex" if dtype.is_complex else "real"


@lru_cache(maxsize=1024)
def numpy_dtype(call: str, op: str, kind: Kind) -> np.dtype[Any]:
    """Return the dtype in which NumPy reduces tensors of this kind.

    Raises:
        ArgumentError: the reduction does not take the dtype.
    """
    dtype = dtype_of(kind)
    is_named = kind.dtype[0] in CODES
    is_whole = kind.dtype[2] == 1 and not kind.is_packed
    if not is_named or not is_whole or _class(dtype) not in REDUCTIONS[op].classes:
        raise ArgumentError(f"{call}: {op} of {dtype} is not defined; convert it first")
    try:
        return dtype.numpy
    except not_from_handler(Exception) as error:
        raise ArgumentError(
            f"{call}: {dtype} needs ml_dtypes to be reduced; pip install 'dlbridge[dtypes]'"
        ) from error


class Operators:
    """Datatypes and operators of MPI for the reductions, made when first needed."""

    def __init__(self, channel: Channel) -> None:
        self._mpi = channel.mpi
        self._operators: dict[str, Any] = {}
        self._types: dict[np.dtype[Any], Any] = {}
        self._dtypes: dict[int, np.dtype[Any]] = {}

    def get(self, op: str, kind: Kind, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Return MPI's datatype of one element, and its operator."""
        reduction, name = REDUCTIONS[op], _TYPES.get(dtype_of(kind).name)
        if name is not None and _class(dtype_of(kind)) in reduction.native:
            return getattr(self._mpi, name), getattr(self._mpi, reduction.operator)
        if dtype not in self._types:
            made = self._mpi.BYTE.Create_contiguous(dtype.itemsize).Commit()
            self._types[dtype] = made
            self._dtypes[self._mpi._handleof(made)] = dtype
        if op not in self._operators:
            self._operators[op] = self._mpi.Op.Create(self._function(reduction.ufunc), True)
        return self._types[dtype], self._operators[op]

    def _function(self, ufunc: np.ufunc) -> Any:
        def reduce(source: Any, target: Any, datatype: Any) -> None:
            dtype = self._dtypes[self._mpi._handleof(datatype)]
            combine(ufunc, np.frombuffer(target, dtype), np.frombuffer(source, dtype))

        return reduce


def combine(ufunc: np.ufunc, target: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> None:
    """Reduce into `target`, without the warnings that MPI's own operators do not give either."""
    with np.errstate(all="ignore"):
        ufunc(target, other, out=target)


def combine_in_order(
    ufunc: np.ufunc, dtype: np.dtype[Any], own: memoryview, other: memoryview, is_first: bool
) -> None:
    """Reduce what another rank sent into one's own, the lower rank's value being the first."""
    target, operand = np.frombuffer(own, dtype), np.frombuffer(other, dtype)
    with np.errstate(all="ignore"):
        ufunc(*((target, operand) if is_first else (operand, target)), out=target)


def finish(op: str, dtype: np.dtype[Any], result: native.TensorBase, size: int) -> None:
    """Make the sum of so many ranks their mean, if that is what was asked for."""
    if op == "mean":
        divide(dtype, result, size)


def divide(dtype: np.dtype[Any], tensor: native.TensorBase, size: int) -> None:
    """Divide a compact tensor in place, as C does."""
    code, bits, lanes = tensor._dtype_triple
    if code in _PARTS:
        dtype = make_dtype(_PARTS[code], bits // 2, lanes).numpy
    _divide(np.asarray(raw_bytes(tensor)).view(dtype), size)


_PARTS = {5: 2, 18: 4}  # type codes of complex numbers, and of their parts


def _divide(values: np.ndarray[Any, Any], size: int) -> None:
    """Divide real numbers in their dtype; small floats in float32, then rounded."""
    with np.errstate(all="ignore"):
        if values.itemsize > _SMALL:
            np.divide(values, values.dtype.type(size), out=values)
        else:
            values[:] = (values.astype(np.float32) / np.float32(size)).astype(values.dtype)


_SMALL = 2  # bytes up to which a float is divided by table, see `quotients`


@lru_cache(maxsize=16)
def quotients(dtype: tuple[int, int, int], size: int) -> bytes:
    """Return every value of a small dtype divided by `size`, ordered by the bits of the value."""
    numbers = np.arange(2 ** dtype[1], dtype=np.uint8 if dtype[1] == 8 else np.uint16)
    _divide(numbers.view(make_dtype(*dtype).numpy), size)
    return numbers.tobytes()


def known_as(op: str, root: int | str | None) -> Any:
    """Return the key under which C knows the reduction."""
    return op if root is None else (op, root)


def follow_ballot(channel: Channel, tensor: native.TensorBase) -> bool:
    """Return whether values follow the ballot and are reduced by it; all ranks find the same."""
    return channel.peers.moves_values(tensor.nbytes)


def aligned(tensor: native.TensorBase) -> native.TensorBase:
    """Return a tensor at whose elements NumPy's loops may look, a copy if need be."""
    itemsize = tensor._dtype_triple[1] // 8
    return tensor if tensor.data_ptr % itemsize == 0 else tensor.copy()


def learn(key: Any, op: str, call: bytes, *dtypes: tuple[int, int, int]) -> native.Reduction:
    """Teach C the reduction of a call, for these dtypes as well, and return it."""
    learn_call(key, partial(_make, op, call))
    made: native.Reduction = QUICK.calls[key]
    for dtype in dtypes:
        if (number := make_dtype(*dtype).numpy.num) not in _NUMBERS:  # of ml_dtypes
            made.learn(dtype, number)
    return made


def _make(op: str, call: bytes) -> native.Reduction:
    reduction = REDUCTIONS[op]
    types = [
        number
        for number, dtype in _NUMBERS.items()
        if _class(DType(dtype.name)) in reduction.classes
    ]
    divided = quotients if op == "mean" else None
    return native.Reduction(call, reduction.ufunc, tuple(types), divided)


_OPERATORS: list[Operators] = []


def operators(channel: Channel) -> Operators:
    """Return the operators of this process."""
    if not _OPERATORS:
        _OPERATORS.append(Operators(channel))
    return _OPERATORS[0]
