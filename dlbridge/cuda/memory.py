"""Memory of CUDA devices from the driver: what there is, and the error of having none."""

from __future__ import annotations

from dlbridge._core import native
from dlbridge.cuda.driver import memory_info
from dlbridge.device import Device, make_device
from dlbridge.errors import AllocationError, DLBridgeError

_PINNED = 3
_KINDS = {2: "device memory", _PINNED: "pinned memory", 13: "managed memory"}


def no_memory(call: str, nbytes: int, device_type: int, device_id: int) -> AllocationError:
    """Return the error of a device that could not give `nbytes` bytes."""
    if device_type not in _KINDS:
        return AllocationError(f"{call}: allocator 'cpu' cannot give {nbytes} bytes aligned to 64")
    device, kind = make_device(device_type, device_id), _KINDS[device_type]
    state = "" if device_type == _PINNED else _describe_memory(device_id)
    return AllocationError(
        f"{call}: {nbytes} bytes of {kind} could not be had on {device}{state}, after what was "
        "kept for reuse was freed; let go of tensors, or of what a framework's pool keeps"
    )


def _describe_memory(device: int) -> str:
    try:
        info = memory_info(device)
    except DLBridgeError:
        return ""
    return f"; {info.free} of the {info.total} bytes of cuda:{device} are free"


def read_pair(device: object) -> tuple[int, int]:
    """Return the pair (type, id) of anything that Device takes."""
    return Device(device).pair


native.set_cuda_memory_hooks(no_memory, read_pair, Device)


def trim() -> None:
    """Free the memory that dlbridge keeps for reuse: pinned, managed, and the driver's pools.

    dlbridge calls it when memory runs out. It may make the host wait for the device.
    """
    native.cuda_trim()
