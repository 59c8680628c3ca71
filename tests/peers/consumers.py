"""The libraries that share this environment, for tests that meet each of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from peers.readers import has

MODULES = {
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "tvm": "tvm_ffi",
    "mlx": "mlx",
    "pyarrow": "pyarrow",
}
CONSUMERS = [name for name, module in MODULES.items() if has(module)]
each_consumer = pytest.mark.parametrize("consumer", CONSUMERS)


def require_all() -> None:
    """Skip the module that calls this unless the three large frameworks can be loaded together."""
    if not all(map(has, ("torch", "jax", "tensorflow"))):
        pytest.skip("torch, jax and tensorflow are not installed together", allow_module_level=True)


def settles(condition: Callable[[], bool]) -> bool:
    """Wait for a library that calls deleters on a thread of its own."""
    for _ in range(200):
        if condition():
            return True
        gc.collect()
        threading.Event().wait(0.01)
    return False
