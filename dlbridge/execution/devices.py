"""Which devices exist, and which of them a device string asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from dlbridge.execution.backend import backend

# Parts of a canonical device string; this process is task 0 of the job "localhost".
_DEVICE = re.compile(
    r"(?:/job:(?P<job>[^/]+))?(?:/replica:(?P<replica>\d+))?(?:/task:(?P<task>\d+))?"
    r"(?:/device:(?P<type>\w+):(?P<index>\d+|\*))?"
)
_HERE = {"job": "localhost", "replica": "0", "task": "0"}
HOST_NAME = "CPU:0"


@lru_cache
def devices(framework: str) -> dict[str, Any]:
    """Return the framework's own device objects by name ("CPU:0", "GPU:1"), its host first.

    Raises:
        FrameworkMissingError: it is not installed, or runs on devices only that are not here.
    """
    return dict(backend(framework).devices())


@lru_cache
def default_name(framework: str) -> str:
    """Return the name of the device on which a framework runs nodes that ask for none.

    Raises:
        FrameworkMissingError: it runs on devices only that are not here.
    """
    names = devices(framework)
    default = backend(framework).default_device()
    if default is None:
        return next(iter(names))
    return next(name for name, device in names.items() if device is default)


def place_name(framework: str, chosen: str) -> str:
    """Return how a place calls a device that was chosen: "" for the framework's host."""
    name = chosen or default_name(framework)
    return "" if name == HOST_NAME else name


def device_object(framework: str, name: str) -> Any:
    """Return the framework's object for the device of a place; None for its own default."""
    full = name or HOST_NAME
    is_default = backend(framework).has_host and full == default_name(framework)
    return None if is_default else devices(framework)[full]


def has_devices(framework: str) -> bool:
    """Return whether a framework is installed and has a device to run on."""
    try:
        return bool(devices(framework))
    except ImportError:
        return False


def entered(framework: str, device: Any) -> AbstractContextManager[Any]:
    """Return a block in which a device is the framework's current one; None is any."""
    return nullcontext() if device is None else backend(framework).entered(device)


def on_device(framework: str, device: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` called with a device as the framework's current one; None is any.

    CuPy needs that: it computes on the current device only, on that device's current stream.
    """
    if device is None:
        return function
    enter = backend(framework).entered

    def call(*values: Any) -> Any:
        with enter(device):
            return function(*values)

    return call


def device_of(value: Any) -> AbstractContextManager[Any]:
    """Return a block in which the device of an array is its framework's current one."""
    is_cupy = type(value).__module__.partition(".")[0] == "cupy"
    return value.device if is_cupy else nullcontext()


def choose(text: str, framework: str) -> str | None:
    """Return the name of the device that a device string asks for.

    Args:
        text: canonical, "" for any device.
        framework: where the node runs.

    Returns:
        A key of `devices(framework)`; "" where the string leaves the device open; None where there
        is no such device.
    """
    match = _DEVICE.fullmatch(text)
    if match is None:
        return None
    if any(match[part] not in (None, here) for part, here in _HERE.items()):
        return None
    kind, index = match["type"], match["index"]
    if kind is None:
        return ""
    wanted = f"{kind}:{0 if index == '*' else index}"
    return wanted if wanted in devices(framework) else None
