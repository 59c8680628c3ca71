"""One package per framework, imported when its first object or its name appears."""

from __future__ import annotations

from dlbridge.exchange import adapter

# name -> top-level modules of its array types, in the order of the ring that the demo walks
_ROOTS: dict[str, tuple[str, ...]] = {
    "numpy": ("numpy",),
    "torch": ("torch",),
    "jax": ("jax", "jaxlib"),
    "tensorflow": ("tensorflow", "keras"),
    "tvm": ("tvm_ffi", "tvm"),
    "mlx": ("mlx",),
    "pyarrow": ("pyarrow",),
    "paddle": ("paddle",),
    "dpnp": ("dpnp", "dpctl"),
    "cupy": ("cupy",),
    "mxnet": ("mxnet",),
}

for _name, _roots in _ROOTS.items():
    adapter.register(_name, f"{__name__}.{_name}", _roots)
adapter.register("dlbridge", f"{__name__}.dlbridge", ("dlbridge",))


def names() -> list[str]:
    """Return the names of all frameworks with an adapter, in ring order."""
    return list(_ROOTS)


def installed() -> list[str]:
    """Return the names of the frameworks that can be imported here, in ring order."""
    return [name for name in _ROOTS if adapter.is_installed(name)]
