"""Tensor: a DLPack tensor as a Python value.

The attributes (`shape`, `strides`, `dtype`, `device`, `ndim`, `size`, `itemsize`, `nbytes`,
`data_ptr`, `readonly`, `is_contiguous`, `flags`, `version`, `buffer`), `copy` and `to`, the buffer
protocol and the DLPack exports come from the native base type; views, values and memory from the
modules beside this one. A view shares the memory of its tensor and keeps it alive.

`equal(a, b)` compares values; `==` with what has values is refused. Tensors hash by identity.
"""

from __future__ import annotations

import copy as copy_module
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from numbers import Number
from typing import Any, Self, TypeVar

import numpy as np

from dlbridge._core import ffi, native
from dlbridge.calls import with_advice
from dlbridge.cuda.driver import stream as on_stream
from dlbridge.device import CUDA_TYPES, HOST_TYPES, Device, as_device, make_device
from dlbridge.dtype import DType, as_dtype, make_dtype
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
    ViewError,
    name_call,
)
from dlbridge.tensor import pickling, values, views
from dlbridge.tensor.values import equal as equal

T = TypeVar("T", bound="Tensor")

# Functions of JAX that look for `__jax_array__` and raise where there is one.
_JAX_REFUSALS = frozenset(
    (
        ("jax._src.core", "shaped_abstractify"),
        ("jax._src.core", "typeof"),
        ("jax._src.dtypes", "canonicalize_value"),
    )
)


@with_advice
class Tensor(native.TensorBase):
    """An n-dimensional view of memory that one or more owners share; see the module.

    Tensors are made by `dlbridge.empty`, `zeros`, `full`, `from_buffer`, `from_dlpack` and
    `as_tensor`, not by calling the class. Subclasses may add attributes; views and copies of one
    have its class.

    A Tensor is an object for exchange: it has no `__array_namespace__`, and `array_api_compat`
    refuses it. `to_numpy`, `to_torch` and so on give an array of a library that has a namespace, in
    the same memory.

    Never pass one to `torch.asarray`: it takes the bytes of any buffer for float32 in one
    dimension, and asks for them as `readinto` does, so that nothing can be refused. `to_torch`,
    `torch.from_dlpack`, `torch.as_tensor` and `torch.tensor` read it rightly.
    """

    __slots__ = ()

    # ---- views ----

    def _apply(self, layout: views.Layout, flags: int = 0) -> Self:
        """Return the view that `layout` describes."""
        offset = views.byte_offset(layout.offset, values.element_bits(self)) if layout.offset else 0
        return self._view(layout.shape, layout.strides, offset, None, flags)

    def _index(self, key: object) -> Self:
        """Return `self[key]`, where C does not know the key; see `views.index`."""
        return self._apply(views.index(self.shape, self.strides, key))

    def __setitem__(self, key: object, value: object) -> None:
        """Copy `value`, broadcast, into the view `self[key]`; see `values.assign`."""
        # Not self[key]: a subclass may return something else there.
        try:
            values.assign(native.TensorBase.__getitem__(self, key), value)
        except (ExchangeError, UnsupportedTypeError) as error:
            name_call(error, "Tensor.__setitem__")
            raise

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a Tensor without dimensions has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Refuse to compare values by one bool; see `dlbridge.equal`.

        A Tensor equals itself, and nothing that is no number, sequence or tensor.
        """
        if self is other:
            return True
        if not _has_values(other):
            return NotImplemented
        raise UnsupportedTypeError(
            f"Tensor == {type(other).__name__}: a Tensor has no == of values; compare all of them "
            "with dlbridge.equal(a, b), each with dlbridge.to_numpy(a) == b, a single one with "
            "a.item() == b, and identity with `is`"
        )

    __hash__ = object.__hash__

    def __contains__(self, number: object) -> bool:
        """Return whether an element equals `number`; see `values.contains`."""
        return values.contains(self, number)

    @property
    def T(self) -> Self:  # noqa: N802
        """The view with all dimensions reversed."""
        return self._apply(views.transpose(self.shape, self.strides))

    @property
    def mT(self) -> Self:  # noqa: N802
        """The view with the last two dimensions swapped."""
        return self._apply(views.matrix_transpose(self.shape, self.strides))

    def transpose(self, *axes: int | Sequence[int] | None) -> Self:
        """Return the view whose dimension `i` is dimension `axes[i]`; without axes, reversed."""
        return self._apply(views.transpose(self.shape, self.strides, _variadic(axes) or None))

    def _reshape(self, *shape: int | Sequence[int]) -> Self:
        """Return `self.reshape(*shape)`, where C leaves it to `views.reshape`."""
        return self._apply(views.reshape(self.shape, self.strides, _variadic(shape)))

    def squeeze(self, axis: int | Iterable[int] | None = None) -> Self:
        """Return the view without the named dimensions of one element, or without all of them."""
        return self._apply(views.squeeze(self.shape, self.strides, axis))

    def expand_dims(self, axis: int | Iterable[int] = 0) -> Self:
        """Return the view with dimensions of one element inserted at `axis` of the result."""
        return self._apply(views.expand_dims(self.shape, self.strides, axis))

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Return a read-only view that repeats elements by strides of 0."""
        layout = views.broadcast_to(self.shape, self.strides, shape)
        return self._apply(layout, values.READ_ONLY)

    def view(self, dtype: object) -> Self:
        """Return the same bits as elements of another dtype, as NumPy's and torch's `view`.

        The last dimension is rescaled when the widths differ; it must be compact and divide. Of
        padded elements, one below 8 bits in each byte, a view of the same width is padded as well.

        Raises:
            ExchangeError: with reason "alignment", the memory is not aligned for the new dtype.
            ViewError: the layout does not allow it without a copy.
            ArgumentError: the sizes do not divide.
        """
        new = _read_dtype("view", dtype)
        bits, new_bits = values.element_bits(self), new.itembits
        padded = bool(self.flags & values.PADDED and self.dtype.bits % 8)
        renamed = padded and new.bits == self.dtype.bits
        if renamed:
            new_bits = bits // self.dtype.lanes * new.lanes
        elif padded and new.bits % 8:
            raise ViewError(f"view({new}): each {self.dtype} element fills a whole byte here, so "
                            "its padding would be read as elements; use tensor.copy().view(…), "
                            "which packs them")  # fmt: skip
        layout = views.reinterpret(self.shape, self.strides, bits, new_bits)
        if _alignment(new) > _alignment(self.dtype):
            _require_alignment(self, _alignment(new), f"view({new})")
        clear = 0 if renamed else values.PADDED
        return self._view(layout.shape, layout.strides, 0, new.triple, clear_flags=clear)

    # ---- typed views, as of the TensorFlow C++ Tensor ----

    def vec(self, dtype: object = None, *, alignment: int | None = None) -> Self:
        """Return the tensor, checked to be a compact aligned vector; see `tensor`."""
        return _checked(self, "vec", 1, dtype, alignment)

    def matrix(self, dtype: object = None, *, alignment: int | None = None) -> Self:
        """Return the tensor, checked to be a compact aligned matrix; see `tensor`."""
        return _checked(self, "matrix", 2, dtype, alignment)

    def tensor(self, ndim: int, dtype: object = None, *, alignment: int | None = None) -> Self:
        """Return the tensor, checked to be memory that compiled code may index as it is.

        Args:
            ndim: the number of dimensions that it must have.
            dtype: the dtype that it must have; None accepts any.
            alignment: bytes that `data_ptr` must be a multiple of. None is the natural alignment of
                one number of the dtype; Eigen and TensorFlow want 64, as `dlbridge.empty` gives.

        Raises:
            ArgumentError: another number of dimensions or another dtype.
            ViewError: the memory is not compact in row-major order.
            ExchangeError: with reason "alignment", the memory is not aligned.
        """
        return _checked(self, "tensor", ndim, dtype, alignment)

    # ---- copies ----

    def contiguous(self) -> Self:
        """Return the tensor itself when it is compact row-major, else a `copy` that is."""
        return self if self.is_contiguous else self.copy()

    def __copy__(self) -> Self:
        same = self._view(self.shape, self.strides)
        vars_of(same).update(vars_of(self))
        return same

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = other = self.copy("K")
        vars_of(other).update(copy_module.deepcopy(vars_of(self), memo))
        return other

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return pickling.reduce(self, int(protocol))

    # ---- values ----

    def item(self) -> Any:
        """Return the only element as a Python number.

        Raises:
            ArgumentError: there is not exactly one.
            ExchangeError: the memory is out of reach ("device"), or the type unreadable ("dtype").
        """
        count = self.size * self._dtype_triple[2]
        if count != 1:
            raise ArgumentError(
                f"only a tensor of one element becomes a number, this one has {count}; "
                "tolist() returns all of them"
            )
        return values.as_array(self, "item()").reshape(-1)[0].item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers, a copy."""
        return values.as_array(self, "tolist()").tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.ndim or not self.dtype.is_integer:
            raise TypeError("only an integer Tensor without dimensions can be an index")
        return int(self.item())

    def __repr__(self) -> str:
        return values.describe(self)

    def _repr_html_(self) -> str:
        """Return what notebooks show: the values, the fields, and a picture of the memory."""
        from dlbridge.tensor.picture import show  # notebooks alone need it

        return show(self, values.describe(self))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array: the same memory, unless elements share bytes.

        `dlbridge.to_numpy(tensor)` is the same exchange under the policies of `convert`, as
        `to_torch(tensor)` is for PyTorch, and so on.

        Raises:
            ExchangeError: with reason "device", the memory is not in the CPU's reach; `cpu()`
                copies it.
        """
        return values.as_array(self, "numpy()")

    def to_device(self, device: object, /, *, stream: Any = None) -> Self:
        """Return the tensor itself when it is on `device`, else a copy there (array API standard).

        Args:
            device: anything that `Device` takes, such as another tensor's `device`.
            stream: the stream of the CUDA device on which the copy is enqueued, as
                `dlbridge.cuda.stream` takes it; None for the current one, as in `to`.

        Raises:
            ExchangeError: as `to` does; with reason "stream", neither device has streams.
        """
        wanted = _read_device("to_device", device)
        if stream is None:
            return self.to(wanted)
        for place in (wanted, self.device):
            if place.type in CUDA_TYPES:
                with on_stream(stream, place):
                    return self.to(wanted)
        raise ExchangeError(
            "stream",
            f"to_device: stream must be None from {self.device} to {wanted}, got {stream!r}",
        )

    def cpu(self) -> Self:
        """Return the tensor itself if it is in CPU memory, else a copy there; as `to("cpu")`."""
        return self.to("cpu")

    # ---- protocols ----

    @property
    def dltensor(self) -> Any:
        """A cffi `DLTensor *` to this tensor's own struct, which it keeps alive.

        Pointers read out of it (`dltensor.shape`, `dltensor.data`) keep nothing alive: hold on to
        it, or to the Tensor, while you use them. Do not write to the struct.
        """
        pointer = ffi.cast("DLTensor *", self._dltensor_address)
        return ffi.gc(pointer, self._let_go)

    def _let_go(self, pointer: object) -> None:
        """Do nothing: as a bound method, it keeps the Tensor for the cffi pointer."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return a NumPy array (NumPy's array protocol), shared unless the elements are packed.

        Raises:
            ViewError: copy=False, and a copy is needed.
            ExchangeError: NumPy cannot read the memory.
        """
        array = values.as_array(self, "numpy.asarray")
        shared = not values.is_packed(self)
        if dtype is not None and array.dtype != dtype:
            array, shared = array.astype(dtype), False
        if copy is False and not shared:
            raise ViewError(f"numpy.asarray: {self.dtype} to {array.dtype} needs a copy")
        return array.copy() if copy and shared else array

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The NumPy dtype, for `numpy.result_type`; absent where NumPy has none."""
        return self.dtype.dtype

    @property
    def __jax_array__(self) -> Callable[[], Any]:
        """Return what makes the `jax.Array` of `convert(self, "jax")`.

        `jax.numpy.asarray` and `array` call it. Where JAX traces, or compiles, it looks for the
        attribute only to refuse it; it is told here what to do instead.
        """
        caller = sys._getframe(1)
        if (caller.f_globals.get("__name__"), caller.f_code.co_name) in _JAX_REFUSALS:
            raise ArgumentError(
                "a dlbridge.Tensor is not an argument of functions that JAX compiles or "
                "transforms; pass dlbridge.to_jax(tensor)"
            )
        return partial(native.convert, self, "jax")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, version 3; absent unless the memory is the CPU's.

        It is for consumers that know nothing else, such as Pillow. It names the memory and keeps
        nothing alive: hold on to the Tensor while it is used.
        """
        if self._device_pair[0] not in HOST_TYPES - CUDA_TYPES or values.is_packed(self):
            raise AttributeError(f"__array_interface__: {self.dtype} on {self.device}")
        return self._interface("__array_interface__", values.on_host(self, "").data_ptr)

    def _interface(self, name: str, address: int) -> dict[str, Any]:
        """Return what both array interfaces say."""
        dtype = values.numpy_dtype(*self._dtype_triple)
        if dtype is None or dtype.isbuiltin != 1:  # ml_dtypes has "<f1", which nobody reads
            raise AttributeError(f"{name} has no name for {self.dtype}")
        size = self.itemsize
        return {
            "shape": self.shape,
            "typestr": dtype.str,
            "data": (address, self.readonly),
            "version": 3,
            "strides": None if self.is_contiguous else tuple(n * size for n in self.strides),
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3; absent unless the memory is CUDA's.

        Its stream is the one on which the contents are there: consumers wait for it. They do not
        say when they are through: the memory waits for the legacy default stream before it goes
        back, and whoever works on a stream that this one does not wait for, a non-blocking one,
        keeps the Tensor until that work is over.
        """
        if self._device_pair[0] not in CUDA_TYPES:
            raise AttributeError(f"__cuda_array_interface__: the tensor is on {self.device}")
        address = self.data_ptr if self.size else 0
        known = self._interface("__cuda_array_interface__", address)
        return {**known, "stream": native.cuda_publish(self)}


def vars_of(tensor: Tensor) -> dict[str, Any]:
    """Return the attributes that a subclass added, or an empty dict."""
    attributes: dict[str, Any] = getattr(tensor, "__dict__", {})
    return attributes


def _has_values(x: object) -> bool:
    """Return whether comparing a Tensor with `x` could only mean to compare values."""
    is_known = isinstance(x, (native.TensorBase, Number, np.ndarray, np.generic, list, tuple))
    return is_known or (hasattr(x, "__dlpack__") and not isinstance(x, type))


def _variadic(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Return f(2, 3), f((2, 3)) and f(None) as one tuple."""
    if len(arguments) == 1 and (arguments[0] is None or isinstance(arguments[0], Iterable)):
        return tuple(arguments[0] or ())
    return arguments


def _read_dtype(call: str, x: object) -> DType:
    """Return the dtype that an argument names; refusals begin with the call."""
    try:
        return as_dtype(x)
    except DLBridgeError as error:
        name_call(error, call)
        raise


def _read_device(call: str, x: object) -> Device:
    try:
        return as_device(x)
    except DLBridgeError as error:
        name_call(error, call)
        raise


def _checked(tensor: T, call: str, ndim: int, dtype: object, alignment: int | None) -> T:
    """Return the tensor, whose memory compiled code may index; see `Tensor.tensor`."""
    for name, number in (("ndim", ndim), ("alignment", alignment)):
        wanted: object = number  # of another type, where it is wrong
        is_left_out = wanted is None and name == "alignment"
        if not is_left_out and not (isinstance(wanted, int) and wanted >= 0):
            raise ArgumentError(f"{call}: {name} must be an integer, 0 or more, got {number!r}")
    required = None if dtype is None else _read_dtype(call, dtype)
    if tensor.ndim != ndim:
        raise ArgumentError(f"{call}: the tensor has {tensor.ndim} dimensions, {ndim} required")
    if required is not None and required is not tensor.dtype:
        raise ArgumentError(f"{call}: {required} is required, got {tensor.dtype}")
    if not tensor.is_contiguous:
        raise ViewError(
            f"{call}: strides {tensor.strides} are not row-major; use tensor.contiguous()"
        )
    _require_alignment(tensor, alignment or _alignment(tensor.dtype), call)
    return tensor


def _alignment(dtype: DType) -> int:
    """Return the bytes that C aligns one number of this dtype to."""
    number = dtype.bits // 2 if dtype.is_complex else dtype.bits
    return max(1, number // 8)


def _require_alignment(tensor: Tensor, alignment: int, call: str) -> None:
    if tensor.size and tensor.data_ptr % alignment:
        raise ExchangeError(
            "alignment",
            f"{call}: data_ptr must be a multiple of {alignment} bytes, it is "
            f"{tensor.data_ptr:#x}; use tensor.copy(), which is aligned to 64",
        )


# ---- arithmetic, which there is none of ----

_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_COMPARED = "lt le gt ge"
_UNARY = "neg pos abs invert"


def _refuse_arithmetic(name: str) -> Callable[..., Any]:
    """Return the method of an operator: it refuses numbers and Tensors; others may know better."""

    def operator(self: Tensor, *others: object) -> Any:
        if not isinstance(others[0] if others else self, (native.TensorBase, Number)):
            return NotImplemented
        raise UnsupportedTypeError(
            f"Tensor.{name}: a Tensor exchanges memory and computes nothing; convert it first, for "
            "example with dlbridge.to_numpy(x), which shares the memory"
        )

    operator.__name__ = name
    operator.__qualname__ = f"Tensor.{name}"
    return operator


for _name in (
    *(f"__{prefix}{each}__" for each in _BINARY.split() for prefix in ("", "r")),
    *(f"__{each}__" for each in f"{_COMPARED} {_UNARY}".split()),
):
    setattr(Tensor, _name, _refuse_arithmetic(_name))

native.set_hooks(
    tensor_type=Tensor,
    make_dtype=make_dtype,
    make_device=make_device,
    refusal=ExchangeError,
    numpy_descr=values.numpy_dtype,
    numpy_fields=values.numpy_fields,
)
