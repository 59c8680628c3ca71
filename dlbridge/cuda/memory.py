"""Memory of CUDA devices: the error of having none, giving it back, and whose an address is."""

from __future__ import annotations

from dlbridge._core import ffi, lib, native
from dlbridge.cuda import ipc
from dlbridge.cuda.driver import memory_info
from dlbridge.device import Device, make_device
from dlbridge.errors import AllocationError, DLBridgeError, ExchangeError, name_call

_CUDA, _PINNED, _MANAGED = 2, 3, 13
_KINDS = {_CUDA: "device memory", _PINNED: "pinned memory", _MANAGED: "managed memory"}


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


def read_pair(device: object, call: str) -> tuple[int, int]:
    """Return the pair (type, id) of anything that Device takes; refusals begin with `call`."""
    try:
        return Device(device).pair
    except DLBridgeError as error:
        name_call(error, call)
        raise


native.set_cuda_memory_hooks(no_memory, read_pair, Device)


def trim() -> None:
    """Free the memory that dlbridge keeps for reuse: pinned, managed, and the driver's pools.

    dlbridge calls it when memory runs out. It may make the host wait for the device.
    """
    native.cuda_trim()


def collect() -> int:
    """Give memory back whose last kernels have finished.

    dlbridge calls it when kernels finish, when memory is given back, and at the end of the process,
    which waits for them. Memory that was sent to other processes also goes back here, once none of
    them has it.

    Returns:
        How many pieces of memory still wait for kernels.
    """
    ipc.release()
    return int(native.cuda_collect())


# ---- where an address is: producers may be wrong about it ---------------------------------------

# Types that memory said to be on such a device may have instead: managed memory is on all.
_ALSO = {_CUDA: (_MANAGED,), _PINNED: (_PINNED,), _MANAGED: (_MANAGED,)}
CHECKED = frozenset(_ALSO)


def device_of(address: int, claimed: int = 0) -> tuple[int, int] | None:
    """Return the DLPack device of memory, or None where the driver does not know the address.

    The driver wants a context: in a thread without one it is asked in that of the device `claimed`.
    """
    found = ffi.new("DLDevice *")
    if lib.dlb_cuda_locate(ffi.cast("void *", address), claimed, found) != 1:
        return None
    return int(found.device_type), int(found.device_id)


def index_of(address: int, claimed: int) -> int:
    """Return the index of the device that has an address; `claimed` if the driver has none."""
    is_asked = address != 0 and native.cuda_open() is None
    found = device_of(address, claimed) if is_asked else None
    return claimed if found is None else found[1]


def check_device(tensor: native.TensorBase, producer: str, call: str) -> None:
    """Refuse a tensor in CUDA memory whose device is not the one that the driver knows.

    Nothing is asked without a driver, and of a tensor without elements.

    Raises:
        ExchangeError: with reason "device"; both devices are named.
    """
    claimed = tensor._device_pair
    if claimed[0] not in CHECKED or not tensor.size or native.cuda_open() is not None:
        return
    found = device_of(tensor.data_ptr, claimed[1])
    if found == claimed or (found is not None and found[0] in _ALSO[claimed[0]]):
        return
    known = "no memory of the driver's" if found is None else f"on {make_device(*found)}"
    raise ExchangeError(
        "device",
        f"{call}: {producer} says that its memory at {tensor.data_ptr:#x} is on "
        f"{make_device(*claimed)}, and the CUDA driver that it is {known}; a kernel there would "
        "fail, or read other memory",
    )
