"""TensorShape: a shape of which the rank or single dimensions may be unknown.

The rules are those of TensorFlow 1.x, and so is the text ("(?, 3)", "<unknown>"); an unknown
dimension is None, as in TensorFlow 2. A shape is immutable. Its native form, the 16-byte record of
the TensorFlow C++ core (`shape.h`), is packed when `record` first asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import Any, NoReturn, final, overload

from dlbridge._core import ffi, lib
from dlbridge.errors import AllocationError, ArgumentError, UnsupportedTypeError
from dlbridge.signals import not_from_handler

MAX_RANK: int = lib.DLB_SHAPE_MAX_RANK
_MAX_EXTENT = 2**63 - 1

Dims = tuple[int | None, ...]


@final
class TensorShape:
    """The dimensions of a tensor as far as they are known.

    Args:
        dims: None (unknown rank), one extent, or an iterable of extents, each None (unknown) or an
            integer from 0; also a TensorShape of TensorFlow or a TensorShapeProto.

    Raises:
        ArgumentError: a negative or too large extent, or more than 254 dimensions.
        UnsupportedTypeError: an extent that is not an integer.

    Two shapes are equal when they know the same: `TensorShape([None]) == TensorShape([None])`;
    `is_compatible_with` asks whether they could be the same. A shape also equals, and hashes
    like, the tuple of its dimensions.

    Example:
        >>> TensorShape([None, 3]).merge_with([2, None]), str(TensorShape([None, 3]))
        (TensorShape([2, 3]), '(?, 3)')
    """

    __slots__ = ("_dims", "_native")

    def __init__(self, dims: object = None) -> None:
        self._dims: Dims | None = _read_dims(dims)
        self._native: Any = None

    @staticmethod
    def from_record(record: bytes) -> TensorShape:
        """Return the shape in a Rep16 or Rep32 record of TensorFlow's core.

        Raises:
            ArgumentError: not such a record; that of a Rep64 points into TensorFlow's memory.
        """
        if len(record) != lib.DLB_SHAPE_BYTES or record[15] >= lib.DLB_SHAPE_REP64:
            raise ArgumentError(
                f"TensorShape.from_record: required 16 bytes with tag 0 or 1, got {record!r}"
            )
        native = ffi.new("dlb_shape *")
        ffi.buffer(native)[:] = record
        room = ffi.new("int64_t[]", lib.DLB_SHAPE_MAX_RANK)
        rank = lib.dlb_shape_rank(native)
        if rank > (6, 3)[record[15]]:
            raise ArgumentError(f"TensorShape.from_record: {rank} dimensions do not fit 12 bytes")
        lib.dlb_shape_unpack(native, room)
        dims = tuple([None if dim < 0 else dim for dim in room[0 : max(rank, 0)]])
        return _make(None if rank < 0 else dims)

    @property
    def record(self) -> bytes:
        """The 16 bytes of TensorFlow's core; the pointer in a Rep64 is valid while `self` lives."""
        if self._native is None:
            self._native = _pack(self._dims)
        return bytes(ffi.buffer(self._native))

    @property
    def dims(self) -> Dims | None:
        """The dimensions, None where unknown; None for an unknown rank."""
        return self._dims

    @property
    def rank(self) -> int | None:
        """The number of dimensions, or None."""
        return None if self._dims is None else len(self._dims)

    @property
    def ndims(self) -> int | None:
        """The same as `rank`."""
        return self.rank

    def as_list(self) -> list[int | None]:
        """Return the dimensions as a list; ArgumentError when the rank is unknown."""
        return list(self._known_dims("as_list"))

    def num_elements(self) -> int | None:
        """Return the product of the dimensions, or None unless all are known."""
        if self._dims is None or None in self._dims:
            return None
        return math.prod(self._dims)  # type: ignore[arg-type]

    def is_fully_defined(self) -> bool:
        """Return True when rank and all dimensions are known."""
        return self._dims is not None and None not in self._dims

    def is_compatible_with(self, other: object) -> bool:
        """Return True when some fully defined shape fits both."""
        return _merge(self._dims, _read_dims(other)) is not _CONFLICT

    def merge_with(self, other: object) -> TensorShape:
        """Return what both know together; ArgumentError when they contradict each other."""
        that = as_shape(other)
        merged = _merge(self._dims, that._dims)
        if merged is _CONFLICT:
            raise ArgumentError(f"Shapes {self} and {that} are not compatible")
        return _make(merged)

    def concatenate(self, other: object) -> TensorShape:
        """Return the dimensions of both in a row; of unknown rank if either is."""
        dims = _read_dims(other)
        return _make(None if self._dims is None or dims is None else self._dims + dims)

    def most_specific_compatible_shape(self, other: object) -> TensorShape:
        """Return what both agree on: the most that is true of either."""
        dims = _read_dims(other)
        if self._dims is None or dims is None or len(self._dims) != len(dims):
            return _make(None)
        return _make(tuple([a if a == b else None for a, b in zip(self._dims, dims, strict=True)]))

    def with_rank(self, rank: int) -> TensorShape:
        """Return this shape, of `rank` unknown dimensions if its rank is unknown, or raise."""
        self.assert_has_rank(rank)
        return unknown_shape(rank) if self._dims is None else self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """Return this shape; ArgumentError when it has fewer than `rank` dimensions."""
        _check_rank("with_rank_at_least", rank)
        if self._dims is not None and len(self._dims) < rank:
            raise ArgumentError(f"Shape {self} must have rank at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """Return this shape; ArgumentError when it has more than `rank` dimensions."""
        _check_rank("with_rank_at_most", rank)
        if self._dims is not None and len(self._dims) > rank:
            raise ArgumentError(f"Shape {self} must have rank at most {rank}")
        return self

    def assert_has_rank(self, rank: int) -> None:
        """Raise ArgumentError when the rank is known to be another."""
        _check_rank("assert_has_rank", rank)
        if self._dims is not None and len(self._dims) != rank:
            raise ArgumentError(f"Shape {self} must have rank {rank}")

    def assert_same_rank(self, other: object) -> None:
        """Raise ArgumentError when both ranks are known and differ."""
        that = as_shape(other)
        if self._dims is not None and that._dims is not None and len(self) != len(that):
            raise ArgumentError(f"Shapes {self} and {that} must have the same rank")

    def assert_is_compatible_with(self, other: object) -> None:
        """Raise ArgumentError when no fully defined shape fits both."""
        if not self.is_compatible_with(other):
            raise ArgumentError(f"Shapes {self} and {as_shape(other)} are incompatible")

    def assert_is_fully_defined(self) -> None:
        """Raise ArgumentError when rank or a dimension is unknown."""
        if not self.is_fully_defined():
            raise ArgumentError(f"Shape {self} is not fully defined")

    @overload
    def __getitem__(self, key: int) -> int | None: ...
    @overload
    def __getitem__(self, key: slice) -> TensorShape: ...
    def __getitem__(self, key: int | slice) -> int | TensorShape | None:
        if self._dims is None:
            return _slice_unknown(key) if isinstance(key, slice) else None
        if isinstance(key, slice):
            return _make(self._dims[key])
        return self._dims[key]

    def __iter__(self) -> Iterator[int | None]:
        return iter(self._known_dims("iter"))

    def __len__(self) -> int:
        return len(self._known_dims("len"))

    def __bool__(self) -> bool:
        """Return True when the rank is known, be it 0."""
        return self._dims is not None

    def __add__(self, other: object) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: object) -> TensorShape:
        return as_shape(other).concatenate(self)

    def __eq__(self, other: object) -> bool:
        if type(other) is TensorShape:
            return self._dims == other._dims
        try:
            return self._dims == _read_dims(other)
        except (ArgumentError, UnsupportedTypeError):
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self._dims)

    def __repr__(self) -> str:
        return f"TensorShape({None if self._dims is None else list(self._dims)})"

    def __str__(self) -> str:
        if self._dims is None:
            return "<unknown>"
        names = ["?" if dim is None else str(dim) for dim in self._dims]
        return f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"

    def __reduce__(self) -> tuple[type[TensorShape], tuple[Dims | None]]:
        return TensorShape, (self._dims,)

    def _known_dims(self, call: str) -> Dims:
        if self._dims is None:
            raise ArgumentError(f"TensorShape: {call}() needs a shape of known rank, got <unknown>")
        return self._dims


def as_shape(dims: object) -> TensorShape:
    """Return `dims` as a TensorShape; the same object if it is one."""
    return dims if type(dims) is TensorShape else TensorShape(dims)


def unknown_shape(rank: int | None = None) -> TensorShape:
    """Return a shape of `rank` unknown dimensions, or of unknown rank."""
    return TensorShape(None if rank is None else (None,) * rank)


def _make(dims: Dims | None) -> TensorShape:
    """Return a shape of dimensions that were checked before."""
    shape = object.__new__(TensorShape)
    shape._dims = dims
    shape._native = None
    return shape


def _read_dims(x: Any) -> Dims | None:
    if x is None:
        return None
    if type(x) in (tuple, list):  # the common case first
        return _check_dims(x)
    if type(x) is TensorShape:
        return x._dims
    if hasattr(x, "unknown_rank"):  # a TensorShapeProto, where -1 is unknown
        x = None if x.unknown_rank else [None if dim.size < 0 else dim.size for dim in x.dim]
    elif hasattr(x, "as_list"):  # TensorFlow's TensorShape
        x = None if x.rank is None else x.as_list()
    return None if x is None else _check_dims(_collect(x))


def _collect(x: Any) -> Iterable[Any]:
    if isinstance(x, str | bytes):
        raise _refuse_dim(x)
    return x if hasattr(x, "__iter__") else (x,)


def _check_dims(dims: Iterable[Any]) -> Dims:
    checked = tuple([None if dim is None else _check_extent(dim) for dim in dims])
    if len(checked) > MAX_RANK:
        raise ArgumentError(f"TensorShape: at most {MAX_RANK} dimensions, got {len(checked)}")
    return checked


def _check_extent(dim: Any) -> int | None:
    if type(dim) is not int:
        dim = getattr(dim, "value", dim)  # TensorFlow 1.x's Dimension
        if dim is None:
            return None
        try:
            dim = int(index(dim))
        except not_from_handler(TypeError):
            raise _refuse_dim(dim) from None
    if not 0 <= dim <= _MAX_EXTENT:
        raise ArgumentError(f"TensorShape: dimension {dim} must be from 0 to 2**63 - 1, or None")
    extent: int = dim
    return extent


def _refuse_dim(dim: object) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"TensorShape: a dimension must be an integer or None, got {dim!r}")


_CONFLICT: Dims = (None,) * (MAX_RANK + 1)  # compared by identity


def _merge(one: Dims | None, other: Dims | None) -> Dims | None:
    if one is None or other is None:
        return other if one is None else one
    if one == other:
        return one
    if len(one) != len(other):
        return _CONFLICT
    for a, b in zip(one, other, strict=True):
        if a is not None and b is not None and a != b:
            return _CONFLICT
    return tuple([b if a is None else a for a, b in zip(one, other, strict=True)])


def _slice_unknown(key: slice) -> TensorShape:
    """Slice a shape of unknown rank: only bounds counted from the front give a rank."""
    start = 0 if key.start is None else index(key.start)
    if key.step not in (None, 1):
        raise ArgumentError("TensorShape: a shape of unknown rank takes slices of step 1 only")
    if key.stop is None or start < 0 or index(key.stop) < 0:
        return _make(None)
    return unknown_shape(max(0, index(key.stop) - start))


def _pack(dims: Dims | None) -> Any:
    """Return a `dlb_shape *` whose memory, that of a Rep64 included, Python frees."""
    native = ffi.gc(ffi.new("dlb_shape *"), lib.dlb_shape_release)
    values = [] if dims is None else [-1 if dim is None else dim for dim in dims]
    # A list would do, but where cffi has no memory to convert one it sets no exception.
    array = ffi.new("int64_t[]", values)
    reason = lib.dlb_shape_pack(native, -1 if dims is None else len(values), array)
    if reason != ffi.NULL:
        _refuse_record(ffi.string(reason).decode())
    return native


def _check_rank(call: str, rank: object) -> None:
    if not isinstance(rank, int):
        raise UnsupportedTypeError(f"TensorShape.{call}: rank must be an integer, got {rank!r}")


def _refuse_record(reason: str) -> NoReturn:
    raise AllocationError(f"TensorShape.record: cannot allocate the dimensions ({reason})")


# ---- strides ----


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a compact row-major tensor.

    An extent of 0 counts as 1, as in PyTorch. `dlb_row_major_strides` is the same rule in C.

    Example:
        >>> row_major((2, 3, 4))
        (12, 4, 1)
        >>> row_major((2, 0, 3))
        (3, 3, 1)
    """
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def positive_strides(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return strides without a sign, for who looks at it where it means nothing.

    Negative strides that mean something must have been dealt with. That of a single element may be
    any number, also -2**63, which has no positive counterpart.

    Example:
        >>> positive_strides((1, 4), (-(2**63), 1))
        [1, 1]
    """
    return [1 if n == 1 else abs(step) for n, step in zip(shape, strides, strict=True)]
