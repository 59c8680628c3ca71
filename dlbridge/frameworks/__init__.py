"""The frameworks: one module, or package, and one row here for each.

The declarations that editors and mypy read follow from the rows: `python -m dlbridge.frameworks`
writes them, and a test compares them.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from dlbridge import registry
from dlbridge.exchange import adapter


def _row(name: str, title: str, noun: str = "array", *roots: str, func: str | None = None) -> None:
    registry.register(
        name,
        f"{__name__}.{name}",
        roots or (name,),
        title=title,
        noun=noun,
        func=func,
    )


# Name, title, what an array is called, and the top-level modules of its types where they are not
# the name alone; in the order of the ring that the demonstration walks.
_row("numpy", "NumPy")
_row("torch", "PyTorch", "tensor", func="to_pytorch_func")
_row("jax", "JAX", "array", "jax", "jaxlib")
_row("tensorflow", "TensorFlow", "tensor", "tensorflow", "keras")
_row("tvm", "TVM (tvm-ffi)", "tensor", "tvm_ffi", "tvm")
_row("mlx", "MLX")
_row("pyarrow", "PyArrow", "pyarrow.Tensor")
_row("onnxruntime", "ONNX Runtime", "OrtValue")
_row("warp", "Warp")
_row("paddle", "Paddle", "tensor")
_row("dpnp", "dpnp", "array", "dpnp", "dpctl")
_row("cupy", "CuPy")
_row("mxnet", "MXNet", "NDArray")
_row("dlbridge", "dlbridge", "Tensor")

# Whose objects hold tensors, which are taken out of them, and to which nothing is converted.
for _name in ("pandas", "polars", "keras", "openvino"):
    registry.register_holder(_name, f"{__name__}.{_name}", (_name,))


def names() -> list[str]:
    """Return the names of all frameworks, in the order of the rows; dlbridge itself is none."""
    return [row.name for row in registry.rows() if row.name != "dlbridge"]


def installed() -> list[str]:
    """Return the names of the frameworks that can be imported here, in the order of the rows."""
    return [name for name in names() if adapter.is_installed(name)]


def _tell_torch(what: str) -> None:
    getattr(registry.load(import_module, f"{__name__}.torch.data"), what)()


def _tell_dynamo() -> None:
    registry.load(import_module, f"{__name__}.torch.compiling").register()


def _tell_einops() -> None:
    registry.load(import_module, f"{__name__}.einops")


# Programs that use Tensors with these tools alone would never ask for an adapter. This comes last,
# since an adapter is imported here where its tool already is.
for _module, _tell in (
    ("torch.utils.data._utils.collate", partial(_tell_torch, "let_collate")),
    ("torch.serialization", partial(_tell_torch, "let_load")),
    ("torch._dynamo", _tell_dynamo),
    ("einops._backends", _tell_einops),
):
    if registry.is_loaded(_module):
        _tell()
    else:
        registry.after_import(_module, _tell)
