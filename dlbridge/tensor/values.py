"""Read, write, compare and print the values of a Tensor, through NumPy.

Only memory that the CPU owns is read: kDLCPU and pinned host memory; CUDA memory can be assigned
to. Types that NumPy lacks are read as those of ml_dtypes; packed types below 8 bits through a copy
with one element per byte; a dtype with lanes as one further dimension; opaque handles as unsigned
integers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge._core import native
from dlbridge.device import CUDA_TYPES, HOST_TYPES, DeviceType
from dlbridge.dtype import DType, as_dtype, make_dtype, read_numpy
from dlbridge.errors import (
    AllocationError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
    name_call,
)
from dlbridge.signals import not_from_handler
from dlbridge.tensor import views

Array = np.ndarray[Any, Any]

READ_ONLY = 1
IMMUTABLE = 1 << 63  # with READ_ONLY, see DLB_IMMUTABLE in _core/core.h
PADDED = 4
CPU = (1, 0)
BYTE = (1, 8, 1)

_READABLE = HOST_TYPES - CUDA_TYPES  # managed memory may belong to a running kernel
_PINNED = DeviceType.CUDA_HOST
_MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
# Dtypes that stand for types which neither NumPy nor ml_dtypes names, by code and bits.
_STAND_INS: dict[tuple[int, int], np.dtype[Any]] = {
    (3, 32): np.dtype("u4"),
    (3, 64): np.dtype("u8"),
    (6, 1): np.dtype("?"),
}


def numpy_dtype(code: int, bits: int, lanes: int = 1) -> np.dtype[Any] | None:
    """Return the NumPy or ml_dtypes dtype of one element, or None when there is none."""
    try:
        return make_dtype(code, bits, lanes).numpy
    except DLBridgeError:
        return None


def numpy_fields(dtype: np.dtype[Any]) -> tuple[int, int, int] | None:
    """Return code, bits and lanes of the dtype of an array, or None where DLPack has none."""
    try:
        return read_numpy(dtype)
    except DLBridgeError:
        return None


def is_packed(tensor: native.TensorBase) -> bool:
    """Return whether elements share bytes, so that not all have an address."""
    return tensor._dtype_triple[1] % 8 != 0 and not tensor.flags & PADDED


def element_bits(tensor: native.TensorBase) -> int:
    """Return the bits that one element takes in memory, lanes and padding included."""
    _, bits, lanes = tensor._dtype_triple
    return (-(-bits // 8) * 8 if tensor.flags & PADDED else bits) * lanes


def on_host(tensor: native.TensorBase, call: str) -> native.TensorBase:
    """Return the tensor as one of CPU memory; of pinned memory, after the copies that use it.

    Raises:
        ExchangeError: with reason "device", the CPU must not read the memory.
    """
    if tensor._device_pair == CPU:
        return tensor
    if tensor._device_pair[0] in _READABLE:
        native.cuda_wait(tensor, True)
        return relabel(tensor, tensor._dtype_triple, tensor.flags)
    how = (
        'tensor.to("cpu") copies it'
        if is_on_cuda(tensor)
        else "copy it to the CPU with the framework that it comes from"
    )
    raise ExchangeError(
        "device",
        f"{call} reads memory, and that of {tensor.device} is out of the CPU's reach; {how}",
    )


def is_on_cuda(tensor: native.TensorBase) -> bool:
    """Return whether the memory is that of a CUDA device or managed."""
    return tensor._device_pair[0] in CUDA_TYPES


def _is_pinned(tensor: native.TensorBase) -> bool:
    """Return whether the copy engines of CUDA devices reach the memory of the host."""
    return tensor._device_pair[0] == _PINNED


def relabel(
    tensor: native.TensorBase, dtype: tuple[int, int, int], flags: int
) -> native.TensorBase:
    """Return the same elements under another dtype of equal width and other flags, as kDLCPU."""
    return native.take_object(
        tensor, tensor.data_ptr, tensor.shape, tensor.strides, dtype, CPU, flags
    )


def raw_bytes(tensor: native.TensorBase) -> native.TensorBase:
    """Return the memory of a contiguous CPU tensor as uint8[nbytes], shared."""
    flags = tensor.flags & READ_ONLY
    return native.take_object(tensor, tensor.data_ptr, (tensor.nbytes,), None, BYTE, CPU, flags)


# ---- new memory ---------------------------------------------------------------------------------

_MOST_BITS = 2**63 - 1


def allocate(
    shape: tuple[int, ...], dtype: tuple[int, int, int], alignment: int = 64, zero: bool = False
) -> native.TensorBase:
    """Return a compact row-major tensor over new memory of the native allocator.

    Raises:
        AllocationError: there is no memory.
    """
    nbits = math.prod(shape) * dtype[1] * dtype[2]
    if nbits > _MOST_BITS:
        raise no_memory("cpu", nbits // 8, alignment)
    try:
        return native.allocate(shape, dtype, max(alignment, 8), zero)
    except not_from_handler(MemoryError) as error:
        raise no_memory("cpu", (nbits + 7) // 8, alignment) from error


def no_memory(name: str, nbytes: int, alignment: int) -> AllocationError:
    """Return the error of an allocator that could not give memory."""
    return AllocationError(f"allocator {name!r} cannot give {nbytes} bytes aligned to {alignment}")


# ---- reading ------------------------------------------------------------------------------------


def as_array(tensor: native.TensorBase, call: str = "reading values") -> Array:
    """Return the values as a NumPy array, shared unless the elements are packed.

    Raises:
        ExchangeError: the memory is not in the CPU's reach ("device"), or neither NumPy nor
            ml_dtypes has the type ("dtype"), or there are more than NumPy's 64 dimensions ("ndim").
    """
    host = _split_lanes(on_host(tensor, call))
    if host.ndim > _MOST_DIMENSIONS:
        raise ExchangeError(
            "ndim", f"{call}: NumPy arrays have {_MOST_DIMENSIONS} dimensions at most"
        )
    code, bits, _ = host._dtype_triple
    dtype = _reading_dtype(code, bits)
    if is_packed(host):
        return _unpack(host).view(dtype)
    if bits % 8 or code == 3:
        unsigned = (1, max(bits, 8), 1)
        host = relabel(host, unsigned, host.flags & READ_ONLY)
        array: Array = native.give_numpy(host)  # type: ignore[assignment]
        return array.view(dtype)
    return native.give_numpy(host, dtype)  # type: ignore[return-value]


def _reading_dtype(code: int, bits: int) -> np.dtype[Any]:
    """Return the NumPy dtype that elements are read as, below 8 bits one per byte."""
    stand_in = _STAND_INS.get((code, bits))
    return make_dtype(code, bits).numpy if stand_in is None else stand_in


def _split_lanes(tensor: native.TensorBase) -> native.TensorBase:
    """Return the lanes of each element as a last dimension."""
    code, bits, lanes = tensor._dtype_triple
    if lanes == 1:
        return tensor
    # A stride that no element is reached by may be any number, and its product overflow.
    strides = tuple(
        stride * lanes if extent > 1 and tensor.size else lanes
        for extent, stride in zip(tensor.shape, tensor.strides, strict=True)
    )
    return tensor._view((*tensor.shape, lanes), (*strides, 1), 0, (code, bits, 1))


def _unpack(tensor: native.TensorBase) -> Array:
    """Copy packed elements into an array of one byte each, high bits zero."""
    codes = allocate(tensor.shape, BYTE)
    native.copy_into(relabel(codes, tensor._dtype_triple, PADDED), tensor)
    return native.give_numpy(codes)  # type: ignore[return-value]


def _tensor_over(array: Array, dtype: tuple[int, int, int]) -> native.TensorBase:
    """Return a Tensor over the memory of a C-contiguous array; below 8 bits, padded."""
    address: int = array.__array_interface__["data"][0]
    flags = PADDED if dtype[1] < 8 else 0
    return native.take_object(array, address, array.shape, None, dtype, CPU, flags)


def pick(tensor: native.TensorBase, positions: list[list[int]]) -> Array:
    """Copy the elements at every combination of these positions, one list per dimension."""
    host = _split_lanes(on_host(tensor, "repr"))
    if host.ndim > tensor.ndim:
        positions = [*positions, list(range(host.shape[-1]))]
    grid = np.ix_(*positions)
    if not is_packed(host):
        picked: Array = as_array(host)[grid]
        return picked
    code, bits, _ = host._dtype_triple
    dtype = _reading_dtype(code, bits)
    places = sum(place * stride for place, stride in zip(grid, host.strides, strict=True))
    return _pick_bits(host, np.asarray(places) * bits, bits).view(dtype)


def _pick_bits(tensor: native.TensorBase, places: Array, bits: int) -> Array:
    """Copy `bits` bits from each of these bit positions into a byte of its own."""
    ends = places + (bits - 1)
    low, high = int(places.min()) // 8, int(ends.max()) // 8
    window = native.take_object(
        tensor, tensor.data_ptr + low, (high - low + 1,), None, BYTE, CPU, READ_ONLY
    )
    memory = as_array(window)
    pairs = memory[places // 8 - low].astype(np.uint16) | (
        memory[ends // 8 - low].astype(np.uint16) << 8
    )
    codes: Array = (pairs >> (places % 8).astype(np.uint16)) & ((1 << bits) - 1)
    return codes.astype(np.uint8)


def _equal(a: Any, b: Any) -> bool:
    """Compare two tensors: the Python path behind `dlbridge.equal`."""
    a, b = (x if isinstance(x, native.TensorBase) else _operand(x) for x in (a, b))
    if a.shape != b.shape or a._dtype_triple != b._dtype_triple:
        return False
    return bool(np.array_equal(as_array(a, "equal"), as_array(b, "equal")))


def _operand(x: Any) -> native.TensorBase:
    try:
        tensor: native.TensorBase = native.from_dlpack(x)
    except (ExchangeError, UnsupportedTypeError) as error:
        name_call(error, "equal")
        raise
    return tensor


_equal.__qualname__ = "equal"  # as errors of a wrong call show it
native.set_hooks(slow_equal=_equal)
if TYPE_CHECKING:
    equal = _equal
else:
    equal = native.equal  # the same, in C for compact tensors of numbers


def contains(tensor: native.TensorBase, number: Any) -> bool:
    """Return whether an element equals `number`, as NumPy's `in`.

    Raises:
        UnsupportedTypeError: `number` is neither a number nor a tensor without dimensions.
        ExchangeError: the values cannot be read.
    """
    if getattr(number, "shape", None) == ():
        number = number.item()
    if not isinstance(number, (bool, int, float, complex)):
        raise UnsupportedTypeError(
            f"in: the elements of a Tensor are compared with one number, got "
            f"{type(number).__name__}; dlbridge.equal compares tensors"
        )
    array = as_array(tensor, "in")
    if array.dtype.kind == "V":  # those of ml_dtypes, whose comparisons round the number
        array = array.astype(np.float64)
    return bool(np.any(array == number))


# ---- writing ------------------------------------------------------------------------------------

# Place of each type code among bool, integer, real (all that are not named) and complex.
_RANKS = {3: -1, 6: 0, 0: 1, 1: 1, 5: 3, 18: 3}
_REAL = 2


def assign(destination: native.TensorBase, value: object) -> None:
    """Copy `value`, broadcast to the shape of `destination`, into its memory.

    Args:
        destination: writable, in the CPU's reach or in CUDA memory, any layout.
        value: a Tensor, an array, a Python number or nested lists of numbers; in CUDA memory only
            of the same dtype. Between the two it is copied as by `Tensor.to`. Values are converted
            towards the wider kind only (bool, integer, real, complex); floating point may be
            rounded, integers must fit.

    Raises:
        ExchangeError: "readonly" or "device"; "dtype" or "masked" when values would be lost; what
            `from_dlpack` refuses.
        UnsupportedTypeError: `value` is nothing that NumPy makes an array of.
        ArgumentError: the shape does not broadcast.
        AllocationError: there is no memory for the converted values.
    """
    if destination.readonly:
        raise ExchangeError(
            "readonly", "cannot assign to a read-only Tensor; assign to tensor.copy() instead"
        )
    is_reached = is_on_cuda(destination) or _is_pinned(destination)
    target = destination if is_reached else on_host(destination, "assignment")
    source = _source(value, target)
    if _is_pinned(target) and not is_on_cuda(source):  # the host copies
        target = on_host(target, "assignment")
    layout = views.broadcast_to(source.shape, source.strides, target.shape)
    if _overlap(source, target):
        source = native.copied(source, source._device_pair, "C", source.flags & PADDED)
        layout = views.broadcast_to(source.shape, source.strides, target.shape)
    native.copy_into(target, source._view(layout.shape, layout.strides))
    for side in (target, source):
        if _is_pinned(side):  # as after other copies of the host's memory, it is through
            native.cuda_wait(side, True, True)


def _source(value: object, target: native.TensorBase) -> native.TensorBase:
    """Return `value` as a tensor of the dtype of `target`, of CPU memory or of CUDA's."""
    given = _take(value)
    if given is not None:
        is_same = given._dtype_triple == target._dtype_triple
        if is_same and (is_on_cuda(given) or (_is_pinned(given) and is_on_cuda(target))):
            return given
        given = on_host(given, "assignment")
        if is_same:
            return given
    array = _read(value) if given is None else as_array(given, "assignment")
    # Before it is converted: a broadcast value may be larger than any memory.
    views.broadcast_to(array.shape, array.shape, target.shape)
    dtype = make_dtype(*target._dtype_triple)
    return _tensor_over(_convert(array, as_dtype(array.dtype), dtype), dtype.triple)


def _take(value: object) -> native.TensorBase | None:
    """Return a tensor's own memory; None for numbers, lists and NumPy's less plain arrays."""
    if isinstance(value, native.TensorBase):
        return value
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return native.take(value)
    tensor: native.TensorBase = native.from_dlpack(value)
    return tensor


def _read(value: object) -> Array:
    """Return what NumPy makes of `value`; whatever its elements raise is the cause of a refusal."""
    try:
        if is_masked(value):
            raise ExchangeError("masked", "cannot assign masked values: the mask would be lost; "
                                "assign x.filled(value), or x.data to leave it out")  # fmt: skip
        return np.asarray(value)
    except (DLBridgeError, MemoryError):
        raise
    except not_from_handler(Exception) as error:
        raise UnsupportedTypeError(f"cannot assign a {type(value).__name__}: {error}") from error


_NUMBERS = frozenset((bool, int, float, complex))


def is_masked(value: object) -> bool:
    """Return whether an element is masked, in an array or in nested lists that hold one."""
    if isinstance(value, (list, tuple)):
        return not _NUMBERS.issuperset(map(type, value)) and any(map(is_masked, value))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _convert(array: Array, source: DType, target: DType) -> Array:
    """Return the values as a C-contiguous array of the type that stands for `target`."""
    if target.lanes != 1:
        raise ExchangeError("lanes", f"cannot assign numbers to {target} elements; view it as a "
                            "dtype without lanes, with one more dimension")  # fmt: skip
    if _RANKS.get(source.code, _REAL) > _RANKS.get(target.code, _REAL):
        raise ExchangeError(
            "dtype",
            f"cannot assign {source} values to {target} elements without loss; convert them first",
        )
    if target.is_integer and array.size:
        _check_range(array if source.bits >= 8 else array.astype(np.int16), target)
    wanted = _reading_dtype(target.code, target.bits)
    try:
        converted: Array = array.astype(wanted, order="C", copy=False)
    except not_from_handler(MemoryError) as error:
        raise no_memory("numpy", array.size * wanted.itemsize, wanted.itemsize) from error
    return converted


# Bits of the significand of each floating point type, the first one included.
_SIGNIFICANDS = {
    "float16": 11,
    "float32": 24,
    "float64": 53,
    "bfloat16": 8,
    "complex32": 11,
    "bcomplex32": 8,
    "complex64": 24,
    "complex128": 53,
    "float8_e3m4": 5,
    "float8_e4m3": 4,
    "float8_e4m3b11fnuz": 4,
    "float8_e4m3fn": 4,
    "float8_e4m3fnuz": 4,
    "float8_e5m2": 3,
    "float8_e5m2fnuz": 3,
    "float8_e8m0fnu": 1,
    "float6_e2m3fn": 4,
    "float6_e3m2fn": 3,
    "float4_e2m1fn": 2,
}
# Without infinity and NaN: what is too large becomes the largest number.
_SATURATING = {"float6_e2m3fn": 7.5, "float6_e3m2fn": 28.0, "float4_e2m1fn": 6.0}
# They hold the range of every narrower type.
_WIDE = frozenset(("float64", "complex128"))


def check_kept(source: native.TensorBase, made: native.TensorBase) -> None:
    """Refuse a conversion to floating point in which more than precision was lost.

    A finite number must have stayed finite, an infinity and a NaN what they were, an integer the
    same integer; other numbers may have been rounded.

    Args:
        source: the values, in the CPU's reach.
        made: the same after the conversion.

    Raises:
        ExchangeError: with reason "dtype", a value was lost; the text has it.
    """
    given, wanted = source.dtype, made.dtype
    if wanted.name not in _SIGNIFICANDS or given.is_bool or not source.size:
        return
    if given.is_integer:
        if given.bits > _SIGNIFICANDS[wanted.name]:
            _require(_are_exact(as_array(source), wanted), source, wanted)
    elif wanted.name in _WIDE or (wanted.name in ("float32", "complex64") and _is_short(given)):
        return
    old, new = as_array(source), as_array(made)
    if wanted.name in _SATURATING:
        largest = _SATURATING[wanted.name]
        _require(np.abs(old.astype(np.float64)) <= largest, source, wanted)
    else:
        kept = (np.isfinite(old) == np.isfinite(new)) & (np.isnan(old) == np.isnan(new))
        _require(kept, source, wanted)


def _is_short(dtype: DType) -> bool:
    return dtype.bits <= (64 if dtype.is_complex else 32)


def _are_exact(array: Array, target: DType) -> Array:
    """Tell which integers have no more significant bits than `target` keeps."""
    signed = array.dtype.kind == "i"
    wide = array.astype(np.int64 if signed else np.uint64)
    sizes = np.abs(wide).view(np.uint64)  # that of the least integer is right as well
    lowest = np.maximum(sizes & (~sizes + np.uint64(1)), np.uint64(1))
    exact: Array = sizes // lowest < np.uint64(1 << _SIGNIFICANDS[target.name])
    return exact


def _require(kept: Array, source: native.TensorBase, target: DType) -> None:
    if not np.all(kept):
        place = np.unravel_index(int(np.argmin(kept)), kept.shape)
        raise ExchangeError(
            "dtype",
            f"a value does not fit {target}: {as_array(source)[place]} at "
            f"[{', '.join(map(str, map(int, place)))}]; cast it in its own framework, as with "
            "x.astype, where it may change",
        )


def _check_range(array: Array, target: DType) -> None:
    """Refuse integers that `target` does not hold; comparing casts would miss a changed sign."""
    signed = target.code == 0
    low = -(1 << target.bits - 1) if signed else 0
    high = (1 << target.bits - signed) - 1
    for value in (int(array.min()), int(array.max())):
        if not low <= value <= high:
            raise ExchangeError(
                "dtype", f"the value {value} does not fit {target}, {low} to {high}"
            )


def _overlap(a: native.TensorBase, b: native.TensorBase) -> bool:
    """Return whether two tensors may share bytes."""
    spans = []
    for tensor in (a, b):
        if 0 in tensor.shape:
            return False
        low, high = views.reach(tensor.shape, tensor.strides)
        bits = element_bits(tensor)
        start = tensor.data_ptr
        spans.append((start + low * bits // 8, start + ((high + 1) * bits + 7) // 8))
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]


# ---- text: values as NumPy prints them, shape, dtype and device ---------------------------------

# Above this many elements at the corners, no values are shown.
_MOST_CORNERS = 20_000


def describe(tensor: native.TensorBase) -> str:
    """Return `Tensor([...], shape=(...), dtype=..., device=...)`.

    At most the elements that are shown are read or copied; memory of other devices than the host is
    never touched and shown as `<not read>`.

    Example:
        >>> print(describe(native.allocate((2, 3), (4, 16, 1), 64, True)))
        Tensor([[0., 0., 0.],
                [0., 0., 0.]], shape=(2, 3), dtype=bfloat16, device=cpu)
    """
    name = type(tensor).__name__
    parts = [
        _text_of_values(tensor, f"{name}("),
        f"shape={tensor.shape}",
        f"dtype={tensor.dtype}",
        f"device={tensor.device}",
    ]
    if tensor.readonly:
        parts.append("readonly=True")
    return f"{name}({', '.join(parts)})"


def _text_of_values(tensor: native.TensorBase, prefix: str) -> str:
    """Return the values as text, or what stands for them when they cannot be read."""
    options = np.get_printoptions()
    edge: int = options["edgeitems"]
    summarise = tensor.size > options["threshold"]
    try:
        if not summarise:
            array = as_array(tensor)
        elif _corner_count(tensor, edge) > _MOST_CORNERS:
            return "<too many dimensions to show>"
        else:
            array = pick(tensor, [_corners(extent, edge) for extent in tensor.shape])
    except DLBridgeError:
        return "<not read>"
    threshold = 0 if summarise else array.size
    return np.array2string(_printable(array), separator=", ", prefix=prefix, threshold=threshold)


def _corners(extent: int, edge: int) -> list[int]:
    """Return the positions that NumPy shows of a long dimension, and one that it leaves out."""
    if extent <= 2 * edge + 1:
        return list(range(extent))
    return [*range(edge + 1), *range(extent - edge, extent)]


def _corner_count(tensor: native.TensorBase, edge: int) -> int:
    return math.prod(min(extent, 2 * edge + 1) for extent in tensor.shape)


def _printable(array: Array) -> np.ndarray[Any, Any]:
    """Return ml_dtypes values as the next wider type of NumPy, which prints evenly."""
    if array.dtype.isbuiltin == 1:
        return array
    dtype = as_dtype(array.dtype)
    wider = "i8" if dtype.is_integer else "c8" if dtype.is_complex else "f4"
    return array.astype(wider)
