"""Ask the driver which device an address belongs to: producers may be wrong about it."""

from __future__ import annotations

from dlbridge._core import ffi, lib, native
from dlbridge.device import make_device
from dlbridge.errors import ExchangeError

_CUDA, _PINNED, _MANAGED = 2, 3, 13
_MEMORY_TYPE, _IS_MANAGED, _ORDINAL = 2, 8, 9  # CUpointer_attribute
_HOST = 1  # CUmemorytype

# Types that memory said to be on such a device may have instead: managed memory is on all.
_ALSO = {_CUDA: (_MANAGED,), _PINNED: (_PINNED,), _MANAGED: (_MANAGED,)}
CHECKED = frozenset(_ALSO)


def device_of(address: int) -> tuple[int, int] | None:
    """Return the DLPack device of memory, or None where the driver does not know the address.

    Raises:
        CUDAError: there is no driver.
    """
    functions = lib.dlb_cuda_get()
    kind = ffi.new("unsigned int[3]")
    for i, attribute in enumerate((_MEMORY_TYPE, _IS_MANAGED, _ORDINAL)):
        if functions.cuPointerGetAttribute(kind + i, attribute, address):
            return None
    if kind[1]:
        return _MANAGED, int(kind[2])
    return (_PINNED, 0) if kind[0] == _HOST else (_CUDA, int(kind[2]))


def index_of(address: int, claimed: int) -> int:
    """Return the index of the device that has an address; `claimed` if the driver has none."""
    found = device_of(address) if address and native.cuda_open() is None else None
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
    found = device_of(tensor.data_ptr)
    if found == claimed or (found is not None and found[0] in _ALSO[claimed[0]]):
        return
    known = "no memory of the driver's" if found is None else f"on {make_device(*found)}"
    raise ExchangeError(
        "device",
        f"{call}: {producer} says that its memory at {tensor.data_ptr:#x} is on "
        f"{make_device(*claimed)}, and the CUDA driver that it is {known}; a kernel there would "
        "fail, or read other memory",
    )
