"""Kernels in TensorFlow: one op, eager and in graphs, and its derivatives.

    eager            the op runs at once, on the caller's thread, over the tensors' own memory
    tf.function      a node with the kernel's name; shapes come from the schema as far as known
    GradientTape     kernel.vjp is the op's gradient, also in saved models
    vectorized_map   kernel.batch says how; else TensorFlow loops
    tf.Variable      read: what the kernel gets is the value

TensorFlow's tensors are values, so a kernel never writes them: what it declares as written in
place comes back as a new tensor, after the results.

A saved model refers to kernels by name: a process that loads it wraps them before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow

from dlbridge.errors import ExchangeError, UnsupportedTypeError
from dlbridge.frameworks.tensorflow import is_keras_variable
from dlbridge.frameworks.tensorflow import op as tensorflow_op
from dlbridge.kernels.binding import Sliced, check_extent
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.schema import (
    Arguments,
    Parameter,
    Result,
    Schema,
    is_plain,
    refusal,
    refuse_scalar,
    type_name,
)


class TensorFlow(Sliced):
    """The binding of TensorFlow: every call is an op, so that tapes and graphs see it."""

    name = "tensorflow"
    is_immutable = True

    def __init__(self) -> None:
        tensorflow_op.register()

    def function(self, kernel: Kernel) -> Callable[..., Any]:
        """Return what `kernel.tensorflow` is: a function for eager code and for tf.function."""
        schema = _schema(kernel)

        def call(*args: Any, **kwargs: Any) -> Any:
            traced = not tensorflow.executing_eagerly()
            return self.call(kernel, schema.arrange(args, kwargs, traced=traced))

        call.__name__ = call.__qualname__ = schema.name
        call.__doc__ = kernel.__doc__
        call.autograph_info__ = {}  # type: ignore[attr-defined]  # see Kernel
        call.__signature__ = schema.signature()  # type: ignore[attr-defined]
        return call

    def call(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the kernel with tensors, variables or symbolic tensors of TensorFlow."""
        schema = _schema(kernel)
        if arguments.out is not None:
            raise ExchangeError(
                "readonly",
                f"{kernel.name}: argument 'out': TensorFlow's tensors are immutable; leave out= "
                "away and use what the kernel returns",
            )
        tensors = [
            value if value is None else read_argument(kernel.name, parameter, value)
            for parameter, value in zip(schema.tensors, arguments.tensors, strict=True)
        ]
        scalars = _read_scalars(schema, arguments.scalars)
        run = tensorflow_op.execute if tensorflow.executing_eagerly() else tensorflow_op.trace
        results = run(kernel, schema, tensors, scalars)
        return tuple(results) if len(results) > 1 else (results[0] if results else None)

    def read_number(self, kernel: Kernel, result: Result, value: Any) -> Any:
        if hasattr(value, "numpy"):
            return value.numpy().item()
        return tensorflow.stop_gradient(value)  # of a graph: not known yet, and a constant

    def read_extent(self, kernel: str, name: str, value: Any, room: Any) -> Any:
        return check_extent(kernel, name, int(value), room) if hasattr(value, "numpy") else value


def _schema(kernel: Kernel) -> Schema:
    if kernel.schema is None:
        raise UnsupportedTypeError(
            f"{kernel.name}: TensorFlow needs to know the results before the kernel runs: wrap the "
            "kernel with a schema"
        )
    return kernel.schema


# ---- arguments ---------------------------------------------------------------------------------


def _read_scalars(schema: Schema, scalars: list[Any]) -> list[Any]:
    """Return scalars as numbers, or as the tensors of the graph that is being made.

    Eager tensors and variables may be watched by a tape, which would lose their gradient.
    """
    if all(map(is_plain, scalars)):
        return scalars
    found = []
    for part, value in zip(schema.scalars, scalars, strict=True):
        is_tensor = isinstance(value, tensorflow.Tensor) or _is_variable(value)
        if is_plain(value):
            found.append(value)
        elif isinstance(value, tuple):
            raise refuse_scalar(schema, part, value, "the numbers of a list must be known")
        elif tensorflow.executing_eagerly() or not is_tensor:
            raise refuse_scalar(schema, part, value)
        else:
            is_of_graph = isinstance(value, tensorflow.Tensor) and hasattr(value, "graph")
            found.append(value if is_of_graph else tensorflow.identity(value))
    return found


def _is_variable(value: Any) -> bool:
    return isinstance(value, tensorflow.Variable) or is_keras_variable(type(value))


def read_argument(kernel: str, parameter: Parameter, value: Any) -> Any:
    """Return an argument as a tf.Tensor; of a variable, its value now."""
    if isinstance(value, tensorflow.Tensor):
        tensor = value
    elif _is_variable(value):
        tensor = tensorflow.convert_to_tensor(value)
    else:
        hint = _HINTS.get(type(value).__name__, "")
        raise UnsupportedTypeError(
            refusal(kernel, parameter.name, parameter.type_text, type_name(value), hint)
        )
    if tensor.dtype.as_datatype_enum not in tensorflow_op.DTYPES:
        shape = (
            ["?..."]
            if tensor.shape.rank is None
            else ["?" if n is None else str(n) for n in tensor.shape]
        )
        got = f"{tensor.dtype.name}[{', '.join(shape)}] (tf.Tensor)"
        raise UnsupportedTypeError(refusal(kernel, parameter.name, parameter.type_text, got))
    return tensor


_HINTS = {
    "KerasTensor": "call the kernel in a layer's call(), or through keras.layers.Lambda",
    "RaggedTensor": "pass its values, or what its to_tensor() gives",
    "SparseTensor": "pass its values, or what tf.sparse.to_dense gives",
    "IndexedSlices": "pass what tf.convert_to_tensor gives",
}


BINDING = TensorFlow()
