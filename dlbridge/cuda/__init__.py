"""CUDA: the driver, devices and streams, as far as exchanging tensors needs them.

The driver library is opened when the first tensor in CUDA memory needs it; no CUDA package is
required. `DLBRIDGE_CUDA_DRIVER` names the library where it is not found as `libcuda.so.1`.

Work is ordered by streams: a tensor knows the stream on which its contents are there, whoever takes
it says on which stream it works, and dlbridge puts an event between the two. The host never waits.
"""

from dlbridge.cuda.driver import (
    as_stream,
    current_stream,
    device_count,
    driver,
    is_available,
    memory_info,
    stream,
    synchronize,
)
from dlbridge.cuda.memory import collect, trim
from dlbridge.cuda.modules import Module

__all__ = [
    "Module",
    "as_stream",
    "collect",
    "current_stream",
    "device_count",
    "driver",
    "is_available",
    "memory_info",
    "stream",
    "synchronize",
    "trim",
]
