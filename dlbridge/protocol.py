"""The protocols that any object may speak, in the order in which `as_tensor` tries them.

DLPack's `__dlpack__`, the CUDA array interface, NumPy's array interface, the buffer protocol. None
of them needs to know the framework.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from dlbridge._core import native
from dlbridge.device import Device
from dlbridge.dtype import DType
from dlbridge.errors import DLBridgeError, ExchangeError, UnsupportedTypeError
from dlbridge.policy import Policy
from dlbridge.receipts import Passage

VERSION = (1, 3)
TABLE = "__dlpack_c_exchange_api__"
_READ_ONLY = 1
_CPU = 1


def describe(x: object) -> str:
    """Return a short name of the type of `x` for error texts, with its module."""
    kind = type(x)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def take(x: Any, policy: Policy, passage: Passage) -> native.TensorBase:
    """Return a Tensor over `x` through whichever protocol it speaks first.

    Raises:
        UnsupportedTypeError: it speaks none.
        ExchangeError: it refuses, or what it hands out cannot be used.
    """
    if type(x).__name__ == "PyCapsule":
        passage.route.append("capsule")
        return native.take_capsule(x)
    if hasattr(type(x), TABLE):
        return take_table(x, policy, passage)
    for attribute, way in _WAYS:
        if hasattr(type(x), attribute) or hasattr(x, attribute):
            return way(x, policy, passage)
    try:
        memory = memoryview(x)
    except TypeError:
        raise UnsupportedTypeError(
            f"from_dlpack: {describe(x)} is no tensor: it has no __dlpack__, no "
            "__cuda_array_interface__, no __array_interface__ and no buffer"
        ) from None
    passage.route.append("buffer protocol")
    return native.take_buffer(memory)


def take_table(x: Any, policy: Policy, passage: Passage) -> native.TensorBase:
    """Return a Tensor over `x` through the C exchange table of its type (DLPack 1.2).

    A table of versions that we do not know is no refusal: there is still `__dlpack__`.
    """
    try:
        tensor = native.take_table(x, getattr(type(x), TABLE))
    except Exception as error:
        refusal = refused(x, error)
        if refusal.reason == "version" and hasattr(x, "__dlpack__"):
            return take_dlpack(x, policy, passage)
        raise refusal from error
    passage.route.append("C exchange table")
    return tensor


def take_dlpack(x: Any, policy: Policy, passage: Passage) -> native.TensorBase:
    """Return a Tensor over `x` through `__dlpack__`, versioned if the producer can.

    The capsule's kind is read from its name, never from what was asked: JAX, TensorFlow and MLX
    answer a request for a versioned capsule with a legacy one.
    """
    passage.route.append("__dlpack__")
    to_host = policy.device is not None and policy.device.is_host_accessible
    if not to_host or Device(dlpack_device(x)).is_host_accessible:
        capsule = export(x, policy)  # kept: a destructor must not run while an error is raised
        return native.take_capsule(capsule)
    if policy.copy is False:
        raise ExchangeError(
            "device",
            f"from_dlpack: {describe(x)} is not in CPU memory, and copy=False forbids the copy",
        )
    capsule = passage.copying(passage.source, "device", lambda: export(x, policy, (_CPU, 0)))
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


def export(x: Any, policy: Policy, dl_device: tuple[int, int] | None = None) -> object:
    """Call `x.__dlpack__` with no more keywords than needed, and again without the newer ones.

    The second call happens only when the TypeError came from the call itself: an older producer
    does not know the keyword. A TypeError raised inside the producer is its refusal.
    """
    keywords: dict[str, Any] = {"max_version": VERSION}
    if policy.stream is not None and dlpack_device(x)[0] != _CPU:
        keywords["stream"] = policy.stream
    if dl_device is not None:
        keywords["dl_device"] = dl_device
    try:
        return x.__dlpack__(**keywords)
    except TypeError as error:
        if _raised_inside(error):
            raise refused(x, error) from error
    except Exception as error:
        raise refused(x, error) from error
    older = {"stream": keywords["stream"]} if "stream" in keywords else {}
    try:
        return x.__dlpack__(**older)
    except Exception as error:
        raise refused(x, error) from error


def _raised_inside(error: TypeError) -> bool:
    """Tell a producer's own TypeError from a call that did not fit its signature.

    A Python producer leaves a frame of its own in the traceback. A compiled one leaves none; there
    the text tells, since argument parsing speaks of keywords and arguments.
    """
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        return True
    text = str(error)
    return not any(word in text for word in ("keyword", "argument", "parameter"))


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
    except DLBridgeError:
        raise
    except Exception as error:
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
    lowered = text.lower()
    reason = next((r for word, r in _REASON_BY_WORD.items() if word in lowered), "producer")
    return ExchangeError(
        reason, f"from_dlpack: {describe(x)} refuses to export: {type(error).__name__}: {text}"
    )


def take_cuda_array_interface(x: Any, policy: Policy, passage: Passage) -> native.TensorBase:
    """Return a Tensor over `x.__cuda_array_interface__` (version 2 or 3).

    The device index is not part of that interface; it is taken from `x.device` where there is one,
    else 0. A `stream` in it asks the consumer to order its work: without a way to do so it is
    refused, unless the caller passes `stream=-1` to say that the ordering is taken care of.
    """
    interface: dict[str, Any] = x.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ExchangeError("masked", f"from_dlpack: {describe(x)} has a mask, which would be lost")
    if interface.get("stream") is not None and policy.stream != -1:
        raise ExchangeError(
            "stream",
            f"from_dlpack: {describe(x)} asks to be ordered after stream {interface['stream']}; "
            "synchronise it and pass stream=-1",
        )
    index = getattr(getattr(x, "device", None), "id", 0)
    passage.route.append("CUDA array interface")
    return _from_interface(x, interface, (2, int(index)))


def take_array_interface(x: Any, _policy: Policy, passage: Passage) -> native.TensorBase:
    """Return a Tensor over `x.__array_interface__` (version 3) in CPU memory."""
    interface: dict[str, Any] = x.__array_interface__
    if interface.get("mask") is not None:
        raise ExchangeError("masked", f"from_dlpack: {describe(x)} has a mask, which would be lost")
    data = interface.get("data")
    if data is None:
        return take_dtype_buffer(x, interface, passage)
    passage.route.append("array interface")
    return _from_interface(x, interface, (_CPU, 0))


def take_dtype_buffer(x: Any, interface: dict[str, Any], passage: Passage) -> native.TensorBase:
    """The array interface without a data field: the object's own buffer holds the bytes."""
    passage.route.append("array interface over a buffer")
    raw = native.take_buffer(memoryview(x).cast("B"))
    dtype, strides = _interface_layout(interface)
    offset = int(interface.get("offset", 0))
    shape = tuple(interface["shape"])
    needed = math.prod(shape) * dtype.itemsize + offset
    if strides is not None or needed > raw.nbytes:
        raise ExchangeError(
            "shape", f"from_dlpack: {describe(x)}: the buffer is too small or strided"
        )
    compact = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return raw._view(shape, compact, offset, dtype.triple)


def _interface_layout(interface: dict[str, Any]) -> tuple[DType, list[int] | None]:
    typestr = interface["typestr"]
    foreign = ">" if sys.byteorder == "little" else "<"
    if typestr[0] == foreign and typestr[2:] != "1":
        raise ExchangeError(
            "byte_order", f"from_dlpack: typestr {typestr!r} is not in native order"
        )
    import numpy

    dtype = DType(numpy.dtype(typestr))
    strides = interface.get("strides")
    if strides is None:
        return dtype, None
    if any(step % dtype.itemsize for step in strides):
        raise ExchangeError(
            "strides", f"from_dlpack: strides {strides} bytes are no multiple of {dtype}"
        )
    return dtype, [step // dtype.itemsize for step in strides]


def _from_interface(
    x: Any, interface: dict[str, Any], device: tuple[int, int]
) -> native.TensorBase:
    dtype, strides = _interface_layout(interface)
    address, readonly = interface["data"]
    return native.take_object(
        (x, interface),  # some interfaces own the memory that they describe
        int(address or 0),
        tuple(interface["shape"]),
        strides,
        dtype.triple,
        device,
        _READ_ONLY if readonly else 0,
    )


_WAYS = (
    ("__dlpack__", take_dlpack),
    ("__cuda_array_interface__", take_cuda_array_interface),
    ("__array_interface__", take_array_interface),
)
