"""`cupy.cuda.runtime`: what of it others ask for."""

from cupy import _driver
from cupy._driver import CUDARuntimeError

is_hip = False
streamLegacy, streamPerThread = _driver.STREAM_LEGACY, _driver.STREAM_PER_THREAD


def getDeviceCount() -> int:
    """Return the number of devices."""
    return _driver.device_count()


def getDevice() -> int:
    """Return the current device of this thread."""
    return _driver.current_device()


def setDevice(device: int) -> None:
    """Change the current device of this thread."""
    _driver.set_device(device)


def streamSynchronize(stream: int) -> None:
    """Make the host wait for a stream."""
    _driver.call("cuStreamSynchronize", stream)


def deviceSynchronize() -> None:
    """Make the host wait for the current device."""
    _driver.call("cuCtxSynchronize")


__all__ = [
    "CUDARuntimeError",
    "deviceSynchronize",
    "getDevice",
    "getDeviceCount",
    "is_hip",
    "setDevice",
    "streamLegacy",
    "streamPerThread",
    "streamSynchronize",
]
