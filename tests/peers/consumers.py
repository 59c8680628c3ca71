"""The libraries that share this environment, for tests that meet each of them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from measuring import until

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

    def is_settled() -> bool:
        return condition() or (gc.collect() >= 0 and condition())

    until(is_settled, "the call of the deleter")
    return True
