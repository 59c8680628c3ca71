"""Which devices exist, and which of them a device string asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from dlbridge.errors import FrameworkMissingError

# Parts of a canonical device string; this process is task 0 of the job "localhost".
_DEVICE = re.compile(
    r"(?:/job:(?P<job>[^/]+))?(?:/replica:(?P<replica>\d+))?(?:/task:(?P<task>\d+))?"
    r"(?:/device:(?P<type>\w+):(?P<index>\d+|\*))?"
)
_HERE = {"job": "localhost", "replica": "0", "task": "0"}


def _torch_devices() -> list[tuple[str, Any]]:
    torch = import_module("torch")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        ("CPU:0", torch.device("cpu")),
        *((f"GPU:{i}", torch.device("cuda", i)) for i in range(count)),
    ]


def _jax_devices() -> list[tuple[str, Any]]:
    jax = import_module("jax")
    names = {"cuda": "GPU", "rocm": "GPU"}
    found = {}
    for platform in dict.fromkeys(("cpu", jax.default_backend())):
        for device in jax.devices(platform):
            kind = names.get(device.platform, device.platform.upper())
            found[f"{kind}:{device.id}"] = device
    return list(found.items())


def _cupy_devices() -> list[tuple[str, Any]]:
    cupy = import_module("cupy")
    if not cupy.cuda.is_available():
        raise FrameworkMissingError(
            "running nodes in cupy needs a GPU with a driver, and there is none here; run them in "
            "numpy, torch or jax"
        )
    return [(f"GPU:{i}", cupy.cuda.Device(i)) for i in range(cupy.cuda.runtime.getDeviceCount())]


_DEVICES: dict[str, Callable[[], list[tuple[str, Any]]]] = {
    "numpy": lambda: [("CPU:0", None)],
    "torch": _torch_devices,
    "jax": _jax_devices,
    "cupy": _cupy_devices,
}


@lru_cache
def devices(framework: str) -> dict[str, Any]:
    """Return the framework's own device objects by name ("CPU:0", "GPU:1"), its host first.

    Raises:
        FrameworkMissingError: it runs on devices only that are not here.
    """
    return dict(_DEVICES[framework]())


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
