"""to_pytorch_func and its family: functions for the tensors of one framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge import registry
from dlbridge.calls import public
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import exchange
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.kinds import is_known
from dlbridge.kernels.wrap import wrap

ToFunc = Callable[[Any], Callable[..., Any]]

# Written by `python -m dlbridge.frameworks`: one function for each row of the table.
to_cupy_func: ToFunc
to_dpnp_func: ToFunc
to_jax_func: ToFunc
to_mlx_func: ToFunc
to_mxnet_func: ToFunc
to_numpy_func: ToFunc
to_onnxruntime_func: ToFunc
to_paddle_func: ToFunc
to_pyarrow_func: ToFunc
to_pytorch_func: ToFunc
to_tensorflow_func: ToFunc
to_tvm_func: ToFunc
to_warp_func: ToFunc

__all__ = [
    "convert_func",
    "to_cupy_func",
    "to_dpnp_func",
    "to_jax_func",
    "to_mlx_func",
    "to_mxnet_func",
    "to_numpy_func",
    "to_onnxruntime_func",
    "to_paddle_func",
    "to_pyarrow_func",
    "to_pytorch_func",
    "to_tensorflow_func",
    "to_tvm_func",
    "to_warp_func",
]
# End of the written part.

_DOC = """Return `f` as a function of {title} {noun}s.

    Args:
        f: a Kernel, or anything that `wrap` takes and that says by itself how it is called: a
            tvm-ffi function, a TVM module (its function "main"), a Numba cfunc, … Without a schema
            the function takes tensors by position, writes into the last and returns what `f`
            returns, as TVM's `to_pytorch_func` makes them; strided and misaligned tensors work,
            by a copy where `f` cannot take them.

    Raises:
        UnsupportedTypeError: `f` is nothing that can be called.
        ArgumentError: `f` does not say how it is called; make it a Kernel with `wrap`.
    """


def _add_function(row: registry.Row) -> None:
    def to_func(f: Any, /) -> Callable[..., Any]:
        kernel = f if isinstance(f, Kernel) else _wrap(f, row.func)
        bound: Callable[..., Any] = getattr(kernel, row.name)
        return bound

    to_func.__name__ = to_func.__qualname__ = row.func
    to_func.__doc__ = _DOC.format(title=row.title, noun=row.noun)
    globals()[row.func] = to_func


def _wrap(f: Any, call: str) -> Kernel:
    """Wrap a function; refuse it in the name of the call that was made."""
    try:
        return wrap(f)
    except (ArgumentError, UnsupportedTypeError) as error:
        text = f"{call}: {str(error).removeprefix('wrap: ')}"
        if isinstance(error, ArgumentError):
            text += f", to dlbridge.wrap, whose Kernel {call} takes"
        raise type(error)(text) from None


registry.for_each(_add_function)


@public
def convert_func(
    f: Any, tensor_type: type | tuple[type, ...], to_dlpack_func: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Convert a function of TVM tensors to one of another framework's, as TVM's `convert_func`.

    Args:
        f: a tvm-ffi function or TVM module, a Kernel, anything that `wrap` takes; or any callable,
            which then gets Tensors.
        tensor_type: the class of the other framework's tensors. Arguments of other classes are
            passed on as they are.
        to_dlpack_func: makes a DLPack capsule, or anything `as_tensor` takes, of such a tensor. The
            memory is shared: what `f` writes into a tensor is seen in the original.

    Returns:
        A function of positional arguments that returns what `f` returns.

    Raises:
        UnsupportedTypeError: `f` or `to_dlpack_func` is not callable.

    Example:
        >>> import numpy
        >>> total = convert_func(lambda x, n: sum(x.tolist()) + n, numpy.ndarray, lambda x: x)
        >>> total(numpy.arange(4), 10)
        16
    """
    if not callable(to_dlpack_func):
        raise UnsupportedTypeError(
            f"convert_func: to_dlpack_func must be a function, got {describe(to_dlpack_func)}"
        )
    classes = tensor_type if isinstance(tensor_type, tuple) else (tensor_type,)
    for each in classes:
        if not isinstance(each, type):
            raise UnsupportedTypeError(
                f"convert_func: tensor_type must be a class or several, got {describe(each)}"
            )
    call = _callable(f)

    def converted(*args: Any) -> Any:
        return call(
            *(
                exchange.as_tensor(to_dlpack_func(each)) if isinstance(each, tensor_type) else each
                for each in args
            )
        )

    return converted


def _callable(f: Any) -> Callable[..., Any]:
    """Return what takes Tensors in place of `f`."""
    if isinstance(f, Kernel):
        return f
    if callable(f) and not is_known(f):
        taken: Callable[..., Any] = f
        return taken
    return wrap(f)
