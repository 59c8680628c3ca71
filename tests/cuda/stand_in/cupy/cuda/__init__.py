"""`cupy.cuda`: devices, streams, events and the memory pool."""

from cupy.cuda import device, memory, runtime, stream
from cupy.cuda.device import Device
from cupy.cuda.function import Function, Module
from cupy.cuda.memory import (
    MemoryPointer,
    MemoryPool,
    OutOfMemoryError,
    UnownedMemory,
    alloc,
    set_allocator,
)
from cupy.cuda.stream import Event, ExternalStream, Stream, get_current_stream


def is_available() -> bool:
    """Return whether there is a device."""
    return runtime.getDeviceCount() > 0


__all__ = [
    "Device",
    "Event",
    "ExternalStream",
    "Function",
    "MemoryPointer",
    "MemoryPool",
    "Module",
    "OutOfMemoryError",
    "Stream",
    "UnownedMemory",
    "alloc",
    "device",
    "get_current_stream",
    "is_available",
    "memory",
    "runtime",
    "set_allocator",
    "stream",
]
