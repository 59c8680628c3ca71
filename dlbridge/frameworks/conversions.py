"""to_numpy, to_torch and their family: `convert(x, name)` under the name's own function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from dlbridge import frameworks, registry
from dlbridge._core import native
from dlbridge.exchange import adapter, exchange
from dlbridge.exchange.context import Grad, Immutable, Layout, Narrow, Policies, Readonly

if TYPE_CHECKING:
    from inspect import Signature


# Written by `python -m dlbridge.frameworks`: one converter for each row of the table.
if TYPE_CHECKING:
    import cupy
    import dpnp
    import jax
    import mlx.core
    import mxnet
    import numpy
    import onnxruntime
    import paddle
    import pyarrow
    import tensorflow
    import torch
    import tvm_ffi
    import warp

    import dlbridge.tensor.tensor

    @overload
    def convert(
        x: object, /, to: Literal["cupy"], **policies: Unpack[Policies]
    ) -> cupy.ndarray: ...
    @overload
    def convert(
        x: object, /, to: Literal["dlbridge"], **policies: Unpack[Policies]
    ) -> dlbridge.tensor.tensor.Tensor: ...
    @overload
    def convert(
        x: object, /, to: Literal["dpnp"], **policies: Unpack[Policies]
    ) -> dpnp.ndarray: ...
    @overload
    def convert(x: object, /, to: Literal["jax"], **policies: Unpack[Policies]) -> jax.Array: ...
    @overload
    def convert(
        x: object, /, to: Literal["mlx"], **policies: Unpack[Policies]
    ) -> mlx.core.array: ...
    @overload
    def convert(
        x: object, /, to: Literal["mxnet"], **policies: Unpack[Policies]
    ) -> mxnet.nd.NDArray: ...
    @overload
    def convert(
        x: object, /, to: Literal["numpy"], **policies: Unpack[Policies]
    ) -> numpy.ndarray[Any, Any]: ...
    @overload
    def convert(
        x: object, /, to: Literal["onnxruntime"], **policies: Unpack[Policies]
    ) -> onnxruntime.OrtValue: ...
    @overload
    def convert(
        x: object, /, to: Literal["paddle"], **policies: Unpack[Policies]
    ) -> paddle.Tensor: ...
    @overload
    def convert(
        x: object, /, to: Literal["pyarrow"], **policies: Unpack[Policies]
    ) -> pyarrow.Tensor: ...
    @overload
    def convert(
        x: object, /, to: Literal["tensorflow"], **policies: Unpack[Policies]
    ) -> tensorflow.Tensor: ...
    @overload
    def convert(
        x: object, /, to: Literal["torch"], **policies: Unpack[Policies]
    ) -> torch.Tensor: ...
    @overload
    def convert(
        x: object, /, to: Literal["tvm"], **policies: Unpack[Policies]
    ) -> tvm_ffi.Tensor: ...
    @overload
    def convert(
        x: object, /, to: Literal["warp"], **policies: Unpack[Policies]
    ) -> warp.array[Any]: ...
    @overload
    def convert(x: object, /, to: object, **policies: Unpack[Policies]) -> Any: ...
    def convert(x: object, /, to: object, **policies: Any) -> Any: ...


to_cupy: native.Converter[cupy.ndarray]
to_dpnp: native.Converter[dpnp.ndarray]
to_jax: native.Converter[jax.Array]
to_mlx: native.Converter[mlx.core.array]
to_mxnet: native.Converter[mxnet.nd.NDArray]
to_numpy: native.Converter[numpy.ndarray[Any, Any]]
to_onnxruntime: native.Converter[onnxruntime.OrtValue]
to_paddle: native.Converter[paddle.Tensor]
to_pyarrow: native.Converter[pyarrow.Tensor]
to_tensorflow: native.Converter[tensorflow.Tensor]
to_torch: native.Converter[torch.Tensor]
to_tvm: native.Converter[tvm_ffi.Tensor]
to_warp: native.Converter[warp.array[Any]]

__all__ = [
    "to_cupy",
    "to_dpnp",
    "to_jax",
    "to_mlx",
    "to_mxnet",
    "to_numpy",
    "to_onnxruntime",
    "to_paddle",
    "to_pyarrow",
    "to_tensorflow",
    "to_torch",
    "to_tvm",
    "to_warp",
]
# End of the written part.

if TYPE_CHECKING:

    def from_dlpack(
        x: object, /, *, device: object = None, copy: bool | None = None, stream: Any = None
    ) -> dlbridge.tensor.tensor.Tensor: ...


_DOC = """Return `x`, a tensor of any framework, as {article} {noun} of {title}.

The memory is shared wherever the consumer can represent it, and stays valid as long as the result
lives. The policies and errors are those of `dlbridge.convert`; `dlbridge.explain(x, "{name}")`
says beforehand whether a copy is needed, `with dlbridge.receipts() as log` afterwards.
"""


def register_framework(
    name: str,
    package: str,
    roots: tuple[str, ...],
    *,
    title: str | None = None,
    noun: str = "array",
) -> None:
    """Add a framework to those that dlbridge knows, for the whole process.

    From then on there are `convert(x, name)`, `dlbridge.to_<name>`, `dlbridge.to_<name>_func` and
    `kernel.<name>`, and objects of the framework are taken by its adapter.

    Args:
        name: lower-case, an identifier.
        package: the dotted name of a module that holds an instance of a subclass of
            `dlbridge.exchange.adapter.Framework` as `ADAPTER`. It is imported when the first object
            of the framework appears, or somebody asks for it by name. Where calls of kernels need
            more than its memory, it is a package, with a module `binding` that holds a
            `dlbridge.kernels.binding.Binding` as `BINDING`.
        roots: the top-level modules of its array types.
        title: its name in texts; None for `name`.
        noun: what it calls an array, in texts.

    Raises:
        ArgumentError: the name is no identifier, or is taken.

    `tests/example_framework` is an example, a made-up library of grids and its module, added by
    `dlbridge.register_framework("grid", "grid_dlbridge", ("grid",), title="Grid", noun="grid")`.
    """
    registry.register(name, package, roots, title=title, noun=noun)


def signature() -> Signature:
    """Return the signature that all converters share."""
    from inspect import signature as read

    def to_framework(
        x: Any,
        /,
        *,
        device: object = None,
        copy: bool | None = None,
        readonly: Readonly = "respect",
        immutable: Immutable = "share",
        grad: Grad = "refuse",
        layout: Layout | None = None,
        narrow: Narrow | None = None,
        dtype: object = None,
        stream: Any = None,
    ) -> Any:
        """Stand for every converter."""

    return read(to_framework)


def _add_converter(row: registry.Row) -> None:
    if row.name == "dlbridge":  # whose is `as_tensor`
        return
    article = "an" if row.noun[0] in "aeiouN" else "a"
    text = _DOC.format(article=article, **row._asdict())
    globals()[f"to_{row.name}"] = converter = native.Converter(row.name, text)
    adapter.add_converter(row.name, converter)


exchange.connect()
frameworks.names()  # the rows are registered by the package's import
registry.for_each(_add_converter)
