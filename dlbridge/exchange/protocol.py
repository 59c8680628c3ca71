"""The protocols that any object may speak, in the order in which `as_tensor` tries them.

DLPack's `__dlpack__`, the CUDA array interface, NumPy's array interface, the buffer protocol. None
of them needs to know the framework.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from mmap import mmap
from operator import index
from types import GeneratorType
from typing import Any, NoReturn

import numpy as np

from dlbridge._core import native
from dlbridge.cuda.memory import index_of
from dlbridge.device import Device
from dlbridge.dtype import DType
from dlbridge.errors import (
    AllocationError,
    DLBridgeError,
    ExchangeError,
    UnsupportedTypeError,
    name_call,
)
from dlbridge.exchange import ordering
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.shape import row_major
from dlbridge.signals import is_from_handler, not_from_handler
from dlbridge.tensor.values import PADDED, READ_ONLY

VERSION = (1, 3)
TABLE = "__dlpack_c_exchange_api__"
# Whose objects have a buffer and speak none of the other protocols.
MEMORY = frozenset((memoryview, bytes, bytearray, array, mmap))
_CPU, _CUDA = 1, 2
_VARKEYWORDS = 8  # inspect.CO_VARKEYWORDS, without that import
_CAPSULE = type(getattr(native.TensorBase, TABLE))


def describe(x: object) -> str:
    """Return a short name of the type of `x` for error texts, with its module."""
    return describe_type(type(x))


def describe_type(kind: type) -> str:
    """Return a short name of a type, with its module."""
    hidden = root_module(kind) in ("", "builtins")
    return kind.__qualname__ if hidden else f"{kind.__module__}.{kind.__qualname__}"


def root_module(kind: object) -> str:
    """Return the top-level module of a class, or "" for one that hides it."""
    module = getattr(kind, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


_COLUMNS = "to convert_tree for a dict of its columns"
_FRAME = f"x.to_numpy(), or a table {_COLUMNS}"
# How the tensors inside are had, by the top-level module of the object's type: the first of these
# whose attribute the type has. An object with none of them, such as a query, holds no tensor.
_ACCESSORS: dict[str, tuple[tuple[str, str], ...]] = {
    "awkward": (("to_numpy", "ak.to_numpy(x)"),),
    "dask": (("compute", "x.compute()"),),
    "h5py": (("keys", "x[name][:]"), ("shape", "x[:]")),
    "jax": (("todense", "x.todense()"),),
    "pandas": (("itertuples", _FRAME),),
    "polars": (("collect", f"x.collect(), a table, {_COLUMNS}"), ("get_columns", _FRAME)),
    "pyarrow": (
        ("itercolumns", f"the table {_COLUMNS}"),
        ("read_all", f"x.read_all(), a table, {_COLUMNS}"),
        ("as_py", "x.as_py() to as_tensor"),
    ),
    "scipy": (("toarray", "x.toarray()"),),
    "sparse": (("todense", "x.todense()"),),
    "taichi": (("to_numpy", "x.to_numpy()"),),
    "xarray": (("data_vars", "x[name].data"), ("data", "x.data")),
    "zarr": (("array_keys", "x[name][:]"), ("shape", "x[:]")),
}


def advise(x: object) -> str:
    """Return the end of a text that `x` is not a tensor: how to get one out of it, or ""."""
    kind = type(x)
    if isinstance(x, (dict, list, tuple)):
        numbers = "" if isinstance(x, dict) else ", as_tensor takes nested numbers"
        return f"; convert_tree converts the tensors inside{numbers}"
    if isinstance(x, (set, frozenset)):
        return "; a set has no order: put what is in it into a list"
    if isinstance(x, range):
        return "; as_tensor takes list(x)"
    if isinstance(x, (int, float, complex)):
        return "; as_tensor takes numbers"
    for attribute, accessor in _ACCESSORS.get(root_module(kind), ()):
        if hasattr(kind, attribute):
            return f"; pass {accessor}"
    if isinstance(x, (GeneratorType, map, zip, filter, enumerate)) or _is_loader(kind):
        return "; dlbridge.stream(x, to) converts what it yields, one after the other"
    if callable(getattr(kind, "state_dict", None)):
        return "; convert_tree converts the tensors of x.state_dict()"
    if _has_variables(kind):
        return "; convert_tree converts the tensors of x.variables"
    if any(each is Mapping for each in kind.__mro__):
        return "; convert_tree converts the tensors inside"
    return "; pass numpy.asarray(x)" if hasattr(kind, "__array__") else ""


def _has_variables(kind: type) -> bool:
    """Return whether a class is a module or a model of TensorFlow or Keras."""
    roots = {root_module(each) for each in kind.__mro__}
    return hasattr(kind, "variables") and not roots.isdisjoint(("tensorflow", "keras"))


def _is_loader(kind: type) -> bool:
    """Return whether objects of a class yield batches, as torch's DataLoader does."""
    return any(each.__name__ in ("DataLoader", "Dataset", "DatasetV2") for each in kind.__mro__)


def is_capsule(x: object) -> bool:
    """Return whether `x` is a PyCapsule."""
    return type(x) is _CAPSULE


def table_of(kind: type) -> object:
    """Return the C exchange table of a type, or None; a class opts out by any other value."""
    table = getattr(kind, TABLE, None)
    return table if is_capsule(table) else None


def is_spoken_by(x: object) -> bool:
    """Return whether `x` itself, not only its type, has one of the protocols' attributes."""
    if isinstance(x, type):
        return False
    names = ("__dlpack__", *(name for name, _ in _INTERFACES))
    return table_of(type(x)) is not None or any(_attribute(x, name) is not None for name in names)


def _attribute(x: object, name: str) -> Any:
    """Return an attribute or None: a property may raise AttributeError to say that it is absent."""
    try:
        return getattr(x, name, None)
    except not_from_handler(Exception) as error:
        raise refused(x, error) from error


def take(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Return a Tensor over `x` through whichever protocol it speaks first.

    Raises:
        UnsupportedTypeError: it speaks none.
        ExchangeError: it refuses, or what it hands out cannot be used.
    """
    if isinstance(x, type):
        raise UnsupportedTypeError(
            f"from_dlpack: the class {x.__qualname__} is not a tensor; pass an object of it"
        )
    if is_capsule(x):
        ordering.refuse_zero(policy)  # before the capsule is consumed
        context.route.append("capsule")
        tensor = native.take_capsule(x)
        ordering.note_asked(tensor, policy.stream)
        return tensor
    if table_of(type(x)) is not None:
        return take_table(x, policy, context)
    if _attribute(x, "__dlpack__") is not None:
        return take_dlpack(x, policy, context)
    for name, way in _INTERFACES:
        fields = _attribute(x, name)
        if fields is not None:
            return way(x, fields, policy, context)
    return _take_buffer(x, policy, context)


def _take_buffer(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    try:
        memory = memoryview(x)
    except not_from_handler(Exception) as error:
        if not isinstance(error, TypeError):
            raise refused(x, error) from error
        raise UnsupportedTypeError(
            f"from_dlpack: {describe(x)} is not a tensor: it has no __dlpack__, no "
            f"__cuda_array_interface__, no __array_interface__ and no buffer{advise(x)}"
        ) from None
    context.route.append("buffer protocol")
    if _lacks_dlpack_layout(memory):
        return take_array(np.asarray(memory), policy, context)
    return native.take_buffer(memory)


def _lacks_dlpack_layout(memory: memoryview) -> bool:
    """Return whether the byte order or the strides of a buffer are such as DLPack cannot name."""
    plain = _FORMAT.fullmatch(memory.format)
    if plain is None or memory.suboffsets:
        return False
    is_swapped = plain[1] in (_FOREIGN, "!") and memory.itemsize > 1
    return is_swapped or any(step % memory.itemsize for step in memory.strides or ())


def take_array(
    array: np.ndarray[Any, Any], policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return a Tensor over an array of NumPy, or over a copy where DLPack cannot name its layout.

    The byte order of DLPack is the machine's, and its strides count elements.
    """
    if not array.dtype.isnative:
        swapped = array.dtype.newbyteorder("=")
        array = copied_by_numpy(array, policy, context, "byte_order", lambda: array.astype(swapped))
    dtype = DType(array.dtype)
    if any(step % array.itemsize for step in array.strides):
        array = copied_by_numpy(
            array, policy, context, "strides", lambda: np.array(array, order="C")
        )
    flags = 0 if array.flags.writeable else READ_ONLY
    if dtype.bits < 8 and not dtype.is_bool:
        flags |= PADDED  # ml_dtypes keeps one sub-byte element per byte
    steps = [step // array.itemsize for step in array.strides]
    address = array.ctypes.data
    return native.take_object(array, address, array.shape, steps, dtype.triple, (_CPU, 0), flags)


# Why NumPy copies what cannot be shared: reason and text of a refusal.
_NUMPY_COPIES = {
    "byte_order": ("byte_order", "is not in the machine's byte order"),
    "scalar": ("copy_required", "is a scalar, without memory of its own"),
    "strides": ("strides", "has strides that are no multiple of the item size"),
}


def copied_by_numpy(
    x: Any,
    policy: Policy,
    context: ExchangeContext,
    why: str,
    copy: Callable[[], np.ndarray[Any, Any]],
) -> np.ndarray[Any, Any]:
    """Return the copy that NumPy makes of what cannot be shared, or refuse it."""
    if policy.copy is False:
        reason, fault = _NUMPY_COPIES[why]
        raise ExchangeError(
            reason,
            f"from_dlpack: {describe(x)} of dtype {x.dtype.str} and shape {x.shape} {fault}; "
            "copy=False forbids the copy that would help: pass copy=None",
        )
    return context.copying("numpy", why, copy)


def take_table(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Return a Tensor over `x` through the C exchange table of its type (DLPack 1.2).

    A table of versions that we do not know is no refusal: there is still `__dlpack__`.
    """
    try:
        tensor = native.take_table(x, table_of(type(x)))
    except not_from_handler(Exception) as error:
        refusal = refused(x, error)
        if refusal.reason == "version" and hasattr(x, "__dlpack__"):
            return take_dlpack(x, policy, context)
        raise refusal from error
    context.route.append("C exchange table")
    return tensor


def take_dlpack(
    x: Any, policy: Policy, context: ExchangeContext, queue: Any = None
) -> native.TensorBase:
    """Return a Tensor over `x` through `__dlpack__`, versioned if the producer can.

    The capsule's kind is read from its name, never from what was asked: JAX, TensorFlow and MLX
    answer a request for a versioned capsule with a legacy one. `queue` is passed as the stream
    where the device has streams that are no numbers.
    """
    context.route.append("__dlpack__")
    to_host = policy.device is not None and policy.device.is_host_accessible
    device = dlpack_device(x)
    stream = ordering.asked_stream(policy, context, device) if queue is None else queue
    if not to_host or Device(device).is_host_accessible:
        capsule = export(x, stream)  # kept: a destructor must not run while an error is raised
        tensor = native.take_capsule(capsule)
        ordering.note_asked(tensor, stream)
        return tensor
    if policy.copy is False:
        raise ExchangeError(
            "device",
            f"from_dlpack: {describe(x)} is on {Device(device)}, not in CPU memory; copy=False "
            "forbids the copy that would help: pass copy=None",
        )
    capsule = context.copying(context.source, "device", lambda: export(x, stream, (_CPU, 0)))
    tensor = native.take_capsule(capsule)
    _check_delivery(x, tensor)
    return tensor


def _check_delivery(x: object, tensor: native.TensorBase) -> None:
    if not tensor.device.is_host_accessible:
        raise ExchangeError(
            "device",
            f"from_dlpack: {describe(x)} was asked for CPU memory and delivered {tensor.device}; "
            "copy it to the host with its own framework first",
        )


def export(x: Any, stream: Any, dl_device: tuple[int, int] | None = None) -> object:
    """Call `x.__dlpack__` with no more keywords than needed, and again without the newer ones.

    `stream` None leaves the keyword out: of CUDA memory that is the legacy default stream.

    A further call happens only where the producer does not know a keyword. Any other error, a
    TypeError included, is its refusal.
    """
    keywords: dict[str, Any] = {"max_version": VERSION}
    if stream is not None:
        keywords["stream"] = stream
    if dl_device is not None:
        keywords["dl_device"] = dl_device
    return _ask(x, keywords)


def _ask(x: Any, keywords: dict[str, Any]) -> object:
    """Call `x.__dlpack__`; each further call is without the keywords that it did not know.

    Nothing keeps an error that is over: with its traceback it would be a cycle that keeps `x`.
    """
    while True:
        try:
            return x.__dlpack__(**keywords)
        except not_from_handler(Exception) as error:
            _leave_out_unknown(x, keywords, error)


def _leave_out_unknown(x: Any, keywords: dict[str, Any], error: Exception) -> None:
    """Delete the keywords that a producer did not know, by the error that it raised.

    Raises:
        ExchangeError: it knew them all, and refuses.
    """
    unknown = unknown_keywords(error, keywords.keys() - {"stream"})
    if not unknown:
        raise refused(x, error) from error
    for name in unknown:
        del keywords[name]


def exported(x: Any, error: Exception, call: str) -> object:
    """Return the capsule of a producer that has raised `error` when it was asked with max_version.

    The C path asks objects of the CPU that have only `__dlpack__`.

    Raises:
        ExchangeError: it refuses, in the name of the call.
    """
    if is_from_handler(error):
        raise error
    try:
        if isinstance(error, DLBridgeError):
            raise error
        keywords: dict[str, Any] = {"max_version": VERSION}
        _leave_out_unknown(x, keywords, error)
        return _ask(x, keywords)
    except (ExchangeError, UnsupportedTypeError) as refusal:
        name_call(refusal, call)
        raise


def is_old_producer(cls: type) -> bool:
    """Return whether the `__dlpack__` of a class, written in Python, can take no max_version."""
    code = getattr(getattr(cls, "__dlpack__", None), "__code__", None)
    if code is None or code.co_flags & _VARKEYWORDS:
        return False
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return "max_version" not in names


# How compiled code and forwarding methods say that `__dlpack__` takes no keyword at all.
_TAKES_NONE = re.compile(
    r"__dlpack__\(\)(?: takes no (?:keyword )?arguments|: incompatible function arguments)"
)


def unknown_keywords(error: Exception, keywords: AbstractSet[str]) -> AbstractSet[str]:
    """Return those of the keywords of a call that its error says the function does not take.

    The text of the TypeError names the keyword, wherever it was raised: a decorator, a method that
    forwards its arguments and Cython leave frames of their own in the traceback. Where it names
    none, argument parsing in C speaks of keywords and arguments, and leaves no frame.
    """
    if not isinstance(error, TypeError):
        return set()
    text = str(error)
    trace = error.__traceback__
    if not any(word in text for word in ("keyword", "argument", "parameter")):
        return set()
    named = {name for name in keywords if re.search(rf"\b{name}\b", text)}
    is_of_all = _TAKES_NONE.search(text) or trace is None or trace.tb_next is None
    return named or (keywords if is_of_all else set())


def dlpack_device(x: Any) -> tuple[int, int]:
    """Return what `x.__dlpack_device__()` says, or (1, 0) without that method (MXNet).

    Paddle answers (1, None) for the CPU; None counts as 0.
    """
    method = getattr(x, "__dlpack_device__", None)
    if method is None:
        return _CPU, 0
    try:
        kind, index = method()
        return int(kind), int(index or 0)
    except (DLBridgeError, MemoryError):
        raise
    except not_from_handler(Exception) as error:
        raise ExchangeError(
            "producer", f"from_dlpack: {describe(x)}.__dlpack_device__ failed: {error}"
        ) from error


_REASON_BY_WORD: dict[str, str] = {
    "read-only": "readonly",
    "readonly": "readonly",
    "require": "requires_grad",
    "conjugate": "conjugate",
    "byte order": "byte_order",
    "byte-order": "byte_order",
    "stream": "stream",
    "deleted": "lazy",
    "tracer": "lazy",
    "dtype": "dtype",
    "stride": "strides",
    "device": "device",
}


def refused(x: object, error: BaseException) -> DLBridgeError:
    """Return the refusal that stands for a producer's own exception."""
    if isinstance(error, DLBridgeError):
        return error
    text = str(error).strip().partition("\n")[0]  # C++ libraries append their stack
    if isinstance(error, MemoryError):
        return AllocationError(f"from_dlpack: {describe(x)} has no memory to export: {text}")
    lowered = text.lower()
    reason = next((r for word, r in _REASON_BY_WORD.items() if word in lowered), "producer")
    return ExchangeError(
        reason, f"from_dlpack: {describe(x)} refuses to export: {type(error).__name__}: {text}"
    )


def take_cuda_array_interface(
    x: Any, fields: Any, _policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return a Tensor over `fields`, the `__cuda_array_interface__` of `x` (version 2 or 3).

    The device index is not part of that interface: the driver is asked which device has the
    memory. Work on it waits for the interface's stream, or for the legacy default stream where it
    has none. No stream of the owner is known for later work, so the memory goes back when all work
    has finished.
    """
    interface = Interface(fields, describe(x))
    interface.refuse_layout()
    if not isinstance(interface.data, tuple):
        interface.refuse(f"data must be (address, read-only), got {interface.data!r}")
    number = _attribute(_attribute(x, "device"), "id") or 0
    if not isinstance(number, int) or not 0 <= number < 2**31:
        interface.refuse(f"its device has the id {number!r}, which is not an index")
    context.route.append("CUDA array interface")
    address, readonly = interface.data
    device = _CUDA, index_of(address, number)
    tensor = _take_memory((x, fields), interface, address, readonly, device)
    ordering.note_asked(tensor, interface.read_stream(fields.get("stream")))
    return tensor


def take_array_interface(
    x: Any, fields: Any, policy: Policy, context: ExchangeContext
) -> native.TensorBase:
    """Return a Tensor over `fields`, the `__array_interface__` of `x` (version 3), in CPU memory.

    Without an address, the elements are in the buffer of its `data`, or else of `x` itself.
    """
    interface = Interface(fields, describe(x))
    if isinstance(interface.data, tuple):
        context.route.append("array interface")
        address, readonly = interface.data
        return _take_host_memory((x, fields), interface, address, readonly, policy, context)
    context.route.append("array interface over a buffer")
    try:
        memory = memoryview(x if interface.data is None else interface.data)
        raw = native.take_buffer(memory.cast("B") if memory.nbytes else b"")
    except not_from_handler(TypeError, ValueError, BufferError) as error:
        interface.refuse(f"data must be (address, read-only) or a contiguous buffer: {error}")
    low, high = interface.reach()
    if interface.offset < 0 or interface.offset + low < 0:
        interface.refuse(f"offset {interface.offset} lies before the buffer")
    if interface.offset + high > memory.nbytes:
        interface.refuse(
            f"the buffer has {memory.nbytes} bytes, offset and elements need "
            f"{interface.offset + high}",
            "shape",
        )
    address = raw.data_ptr + interface.offset
    return _take_host_memory((x, raw), interface, address, memory.readonly, policy, context)


def _take_host_memory(
    owner: object,
    interface: Interface,
    address: int,
    readonly: bool,
    policy: Policy,
    context: ExchangeContext,
) -> native.TensorBase:
    if interface.layout_refusal() is None:
        return _take_memory(owner, interface, address, readonly, (_CPU, 0))
    if address == 0 and 0 not in interface.shape:
        interface.refuse("its data is NULL, with elements", "null_data")
    try:
        array = np.asarray(_Memory(owner, interface, address, readonly))
    except not_from_handler(TypeError, ValueError) as error:
        interface.refuse(f"NumPy cannot read it for a copy: {error}")
    return take_array(array, policy, context)


class _Memory:
    """Checked memory of an array interface, for NumPy."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: object, interface: Interface, address: int, readonly: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": interface.typestr,
            "shape": interface.shape,
            "strides": interface.steps,
            "data": (address, readonly),
        }


def _take_memory(
    owner: object, interface: Interface, address: int, readonly: bool, device: tuple[int, int]
) -> native.TensorBase:
    """Return a Tensor at `address`; `owner` includes the interface, which may own the memory."""
    return native.take_object(
        owner,
        address,
        interface.shape,
        interface.strides,
        interface.dtype.triple,
        device,
        READ_ONLY if readonly else 0,
    )


_INTERFACES = (
    ("__cuda_array_interface__", take_cuda_array_interface),
    ("__array_interface__", take_array_interface),
)


# ---- the dictionary of the array interfaces: it may be wrong, so each field is checked ----------

_FOREIGN = ">" if sys.byteorder == "little" else "<"
_FORMAT = re.compile(r"([@=<>!^]?)(?:Z?[fd]|[bBhHiIlLqQnNe])")
_TYPESTR = re.compile(r"[<>|=][A-Za-z]\d*(\[\w+\])?")


class Interface:
    """One such dictionary, read and checked.

    Attributes:
        name: of the object's type, for error texts.
        typestr: the dtype as the dictionary names it.
        dtype, shape: of the elements, in native byte order.
        steps: the strides in bytes, or None for row-major memory.
        data: (address, read-only), or the object whose buffer holds the elements, or None.
        offset: bytes in front of the first element, where `data` is no address.
    """

    __slots__ = ("data", "dtype", "name", "offset", "shape", "steps", "typestr")

    def __init__(self, fields: Any, name: str) -> None:
        self.name = name
        if not isinstance(fields, dict):
            self.refuse(f"the interface must be a dict, got {fields!r}")
        if fields.get("mask") is not None:
            self.refuse("its mask would be lost", "masked")
        self.typestr, self.dtype = self._read_dtype(fields.get("typestr"))
        self.shape = self._read_integers(fields.get("shape"), "shape")
        if any(extent < 0 for extent in self.shape):
            self.refuse(f"shape {self.shape} has a negative dimension", "shape")
        self.steps = self._read_strides(fields.get("strides"))
        self.data: Any = self._read_data(fields.get("data"))
        (self.offset,) = self._read_integers((fields.get("offset", 0),), "offset")

    def refuse(self, what: str, reason: str = "producer") -> NoReturn:
        """Raise the refusal that says what is wrong with the dictionary."""
        raise ExchangeError(reason, f"from_dlpack: {self.name}: {what}")

    def read_stream(self, stream: object) -> int:
        """Return the stream of the CUDA array interface, 1 where it names none."""
        if stream is None:
            return 1
        if isinstance(stream, bool) or not isinstance(stream, int) or stream <= 0:
            self.refuse(
                f"its stream must be None, 1, 2 or the address of a CUDA stream, got {stream!r}",
                "stream",
            )
        return stream

    def reach(self) -> tuple[int, int]:
        """Return the first byte of the elements and the byte after the last, from the first one."""
        if 0 in self.shape:
            return 0, 0
        size = self.dtype.itemsize
        steps = self.steps or [step * size for step in row_major(self.shape)]
        spans = [(extent - 1) * step for extent, step in zip(self.shape, steps, strict=True)]
        return sum(min(span, 0) for span in spans), sum(max(span, 0) for span in spans) + size

    @property
    def strides(self) -> list[int] | None:
        """The strides in elements, or None for row-major memory."""
        return None if self.steps is None else [step // self.dtype.itemsize for step in self.steps]

    def layout_refusal(self) -> str | None:
        """Return the reason why DLPack cannot name the layout, or None."""
        if self.typestr[0] == _FOREIGN and self.dtype.itemsize > 1:
            return "byte_order"
        is_odd = any(step % self.dtype.itemsize for step in self.steps or ())
        return "strides" if is_odd else None

    def refuse_layout(self) -> None:
        """Refuse what DLPack cannot name, where nobody copies it."""
        reason = self.layout_refusal()
        if reason == "byte_order":
            self.refuse(f"typestr {self.typestr!r} is not in native order", reason)
        if reason is not None:
            self.refuse(f"strides {self.steps} bytes are no multiple of {self.dtype}", reason)

    def _read_dtype(self, typestr: object) -> tuple[str, DType]:
        if not isinstance(typestr, str) or _TYPESTR.fullmatch(typestr) is None:
            self.refuse(f"typestr must be as '<f4' is, got {typestr!r}")
        try:
            dtype = np.dtype(typestr)
        except not_from_handler(TypeError, ValueError):
            self.refuse(f"typestr {typestr!r} names no dtype")
        return typestr, DType(dtype.newbyteorder("="))

    def _read_integers(self, values: object, field: str) -> tuple[int, ...]:
        if not isinstance(values, (tuple, list)):
            self.refuse(f"{field} must be a tuple, got {values!r}")
        try:
            found = tuple(map(index, values))
        except not_from_handler(TypeError):
            self.refuse(f"{field} must be of integers, got {values!r}")
        if any(not -(2**63) <= value < 2**63 for value in found):
            self.refuse(f"{field} must fit 64 bits, got {values!r}", "overflow")
        return found

    def _read_strides(self, steps: object) -> tuple[int, ...] | None:
        if steps is None:
            return None
        steps = self._read_integers(steps, "strides")
        if len(steps) != len(self.shape):
            self.refuse(f"{len(steps)} strides for {len(self.shape)} dimensions")
        return steps

    def _read_data(self, data: object) -> object:
        if not isinstance(data, tuple):
            return data
        if len(data) != 2:
            self.refuse(f"data must be (address, read-only), got {data!r}")
        return self._read_address(data[0]), bool(data[1])

    def _read_address(self, address: Any) -> int:
        try:
            found = 0 if address is None else index(address)
        except not_from_handler(TypeError):
            self.refuse(f"an address must be an integer, got {address!r}")
        if not 0 <= found < 2**64:
            self.refuse(f"an address has 64 bits, got {found}")
        return found
