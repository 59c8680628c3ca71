"""to_numpy, to_torch and their family: `convert(x, name)` under the name's own function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge import frameworks
from dlbridge._core import native
from dlbridge.exchange import adapter, exchange

if TYPE_CHECKING:
    from inspect import Signature

_DOC = """Return `x`, a tensor of any framework, as {article} of {name_of}.

The memory is shared wherever the consumer can represent it, and stays valid as long as the result
lives. The policies and errors are those of `dlbridge.convert`; `dlbridge.explain(x, "{framework}")`
says beforehand whether a copy is needed, `with dlbridge.receipts() as log` afterwards.
"""


def _converter(framework: str, name_of: str, article: str = "an array") -> native.Converter:
    text = _DOC.format(framework=framework, name_of=name_of, article=article)
    converter = native.Converter(framework, text)
    adapter.add_converter(framework, converter)
    return converter


def signature() -> Signature:
    """Return the signature that all converters share."""
    from inspect import signature as read

    def to_framework(
        x: Any,
        /,
        *,
        device: object = None,
        copy: bool | None = None,
        readonly: str = "respect",
        immutable: str = "share",
        grad: str = "refuse",
        layout: str | None = None,
        stream: Any = None,
    ) -> Any:
        """Stand for every converter."""

    return read(to_framework)


exchange.connect()
frameworks.names()  # the adapters are registered by the package's import

to_numpy = _converter("numpy", "NumPy")
to_torch = _converter("torch", "PyTorch", "a tensor")
to_jax = _converter("jax", "JAX")
to_cupy = _converter("cupy", "CuPy")
to_tensorflow = _converter("tensorflow", "TensorFlow", "an eager tensor")
to_tvm = _converter("tvm", "TVM (tvm-ffi)", "a tensor")
to_paddle = _converter("paddle", "Paddle", "a tensor")
to_mxnet = _converter("mxnet", "MXNet", "an NDArray")
to_mlx = _converter("mlx", "MLX")
to_dpnp = _converter("dpnp", "dpnp")
to_pyarrow = _converter("pyarrow", "PyArrow", "a pyarrow.Tensor")
