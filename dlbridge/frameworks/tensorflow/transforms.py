"""The op under TensorFlow's transformations: tapes, accumulators and tf.vectorized_map.

The gradient belongs to the op and finds the kernel by its name, so functions that were saved with
a model can be differentiated as well. Tapes call kernel.vjp, accumulators kernel.jvp or the
transposed vjp.

`batch=` tells what tf.vectorized_map does, and so jacobians:

    "sequential"   TensorFlow loops over the batch, as it does for every op that it does not know
    "broadcast"    one call, with the batch as one more dimension at the head of each pack
    a function     is called with the stacked tensors

Where the rule does not apply (a scalar that differs from call to call, say), it is the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow
from tensorflow.python.eager import forwardprop
from tensorflow.python.framework import ops
from tensorflow.python.ops.parallel_for import pfor

from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError, KernelError
from dlbridge.frameworks.tensorflow.op import CALL, TRANSPOSED, read_scalars, trace
from dlbridge.kernels import gradients
from dlbridge.kernels.kernel import Kernel, find
from dlbridge.kernels.schema import Schema


def register() -> None:
    """Register the gradient, the forward derivative and the vectorised form of the op."""
    for name in (CALL, TRANSPOSED):
        tensorflow.RegisterGradient(name)(_differentiate)
    forwardprop._SPECIAL_CASES[CALL] = _push_forward
    pfor.RegisterPFor(CALL)(_vectorise)


# ---- one call of the op --------------------------------------------------------------------------

NAMES = ("kernel", "scalars", "present")  # the attributes that say what was called
_KINDS: dict[str, Any] = {"float": float, "int": int, "bool": bool}


class Node:
    """One call of the op.

    Attributes:
        kernel, schema: what was called.
        places: the op's tensors -> their places among the schema's tensors.
        primals: the schema's tensors, None for one that was left out.
        scalars: the schema's scalars; a symbolic one is a tensor.
        results: the results.
    """

    __slots__ = ("kernel", "places", "primals", "results", "scalars", "schema")

    def __init__(
        self, attributes: Mapping[str, str], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        kernel = find(attributes["kernel"])
        assert kernel.schema is not None
        self.kernel: Kernel = kernel
        self.schema: Schema = kernel.schema
        present = attributes["present"] or "1" * len(self.schema.tensors)
        self.places = [index for index, flag in enumerate(present) if flag == "1"]
        self.primals: list[Any] = [None] * len(self.schema.tensors)
        for index, tensor in zip(self.places, inputs, strict=False):
            self.primals[index] = tensor
        self.scalars = self._read_scalars(attributes["scalars"], inputs[len(self.places) :])
        self.results = list(outputs[: len(self.schema.results)])

    def _read_scalars(self, text: str, tensors: Sequence[Any]) -> list[Any]:
        return [
            _KINDS[part.kind](scalar.numpy()) if isinstance(scalar, ops.EagerTensor) else scalar
            for part, scalar in zip(self.schema.scalars, read_scalars(text, tensors), strict=True)
        ]


def read_node(op: Any) -> Node:
    """Return the call that an operation of TensorFlow, or a record of a tape, stands for."""
    return Node({name: op.get_attr(name).decode() for name in NAMES}, op.inputs, op.outputs)


# ---- backward ----------------------------------------------------------------------------------


def _differentiate(op: Any, *cotangents: Any) -> list[Any]:
    """Return the gradient of each input of the op, None where there is none."""
    node = read_node(op)
    vjp = gradients.make_vjp(node.kernel)
    if vjp is None:
        raise gradients.no_gradient(node.kernel)
    given = [
        _dense(cotangent, result)
        for cotangent, result in zip(cotangents, node.results, strict=False)
    ]
    scalars = [_scalar_like(node, scalar, given) for scalar in node.scalars]
    found = vjp(node.primals, scalars, node.results, given)
    wanted = [found[index] for index in node.places]
    return [*wanted, *[None] * (len(op.inputs) - len(wanted))]


def _dense(cotangent: Any, result: Any) -> Any:
    """Return a cotangent as a tensor; a result that nothing depends on has zeros."""
    if cotangent is None:
        return tensorflow.zeros_like(result)
    return tensorflow.convert_to_tensor(cotangent)


def _scalar_like(node: Node, scalar: Any, cotangents: list[Any]) -> Any:
    """Return a scalar for use in the gradient; a symbolic one has the dtype of what it scales.

    Raises:
        ExchangeError: the scalar is symbolic and may depend on what is differentiated.
    """
    if not isinstance(scalar, tensorflow.Tensor) or not scalar.dtype.is_floating:
        return scalar
    if scalar.op.type != "StopGradient":
        raise ExchangeError(
            "requires_grad",
            f"{node.kernel.name}: a scalar is a symbolic tensor, whose gradient would be lost: "
            "pass a Python number, or tf.stop_gradient of the scalar",
        )
    floating = [each.dtype for each in cotangents if each.dtype.is_floating]
    return tensorflow.cast(scalar, floating[0]) if floating else scalar


# ---- forward -----------------------------------------------------------------------------------


def _push_forward(
    pairs: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """Return the tangent of each output of the op."""
    given = dict(zip(pairs[::2], pairs[1::2], strict=True))
    node = Node({name: _text(given[name]) for name in NAMES}, inputs, outputs)
    jvp = gradients.make_jvp(node.kernel)
    if jvp is None:
        own: list[Any] = forwardprop._jvp_helper(TRANSPOSED, pairs, inputs, outputs, tangents)
        return own
    spread: list[Any] = [None] * len(node.primals)
    for index, tangent in zip(node.places, tangents, strict=False):
        spread[index] = tangent
    return list(jvp(node.primals, node.scalars, spread))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# ---- batches -------------------------------------------------------------------------------------


def _vectorise(given: Any) -> list[Any]:
    """Return the stacked outputs of the op for all turns of a loop."""
    node = read_node(given.op)
    count = len(node.places)
    flags = [bool(given.input(index).is_stacked) for index in range(given.num_inputs)]
    if node.kernel.batch == "sequential":
        raise _loop(node, "its batch= is 'sequential'")
    if any(flags[count:]):
        raise _loop(node, "a scalar differs from call to call")
    if node.kernel.batch == "broadcast":
        made = _broadcast(node, given, flags[:count])
    else:
        made = _call_rule(node, given, flags[:count])
    return [pfor.wrap(each, True) for each in made]


def _loop(node: Node, why: str) -> Exception:
    """Return what makes TensorFlow loop, or raise where that is forbidden."""
    error: Exception = pfor.ConversionNotImplementedError(f"{node.kernel.name}: {why}")
    return error


def _tensors(node: Node, given: Any) -> list[Any]:
    """Return the converted tensors in the schema's order, None for one that is left out."""
    tensors: list[Any] = [None] * len(node.primals)
    for index, place in enumerate(node.places):
        tensors[place] = given.input(index).t
    return tensors


def _scalars(node: Node, given: Any) -> list[Any]:
    """Return the scalars; those that are tensors as they are outside of the loop."""
    traced = iter([given.input(index).t for index in range(len(node.places), given.num_inputs)])
    return [next(traced) if isinstance(each, tensorflow.Tensor) else each for each in node.scalars]


def _broadcast(node: Node, given: Any, flags: Sequence[bool]) -> Sequence[Any]:
    leading = [_starts_with_pack(node.schema, place) for place in node.places]
    if any(flag and not lead for flag, lead in zip(flags, leading, strict=True)):
        raise _loop(node, "a batched argument has no pack of dimensions at its head")
    given.stack_inputs([index for index, lead in enumerate(leading) if lead])
    try:
        return trace(node.kernel, node.schema, _tensors(node, given), _scalars(node, given))
    except DLBridgeError as error:
        raise _loop(node, str(error)) from error


def _starts_with_pack(schema: Schema, place: int) -> bool:
    dims = schema.tensors[place].dims
    return bool(dims) and dims[0].kind == "pack"


def _call_rule(node: Node, given: Any, flags: Sequence[bool]) -> Sequence[Any]:
    marks = [False] * len(node.primals)
    for place, flag in zip(node.places, flags, strict=True):
        marks[place] = flag
    rule: Any = node.kernel.batch
    size = _size(given)
    names = [part.name for part in node.schema.scalars]
    scalars = dict(zip(names, _scalars(node, given), strict=True))
    made = rule(size, tuple(marks), *_tensors(node, given), **scalars)
    stacked = list(made) if isinstance(made, tuple | list) else [made]
    _check_batch(node, stacked, given.op.outputs, size if isinstance(size, int) else None)
    return stacked


def _size(given: Any) -> Any:
    """Return the length of the batch, a symbolic tensor where it is not known yet."""
    stacked = [each.t.shape for each in given.inputs if each.is_stacked]
    known = [shape[0] for shape in stacked if shape.rank and shape[0] is not None]
    return known[0] if known else given.pfor.loop_len_vector[0]


def _check_batch(node: Node, made: list[Any], single: Sequence[Any], size: int | None) -> None:
    name = node.kernel.name
    if len(made) != len(single):
        raise KernelError(f"{name}: batch= returned {len(made)} results instead of {len(single)}")
    for index, (each, like) in enumerate(zip(made, single, strict=True)):
        shape = tensorflow.TensorShape([size]).concatenate(like.shape)
        if each.dtype != like.dtype or not shape.is_compatible_with(each.shape):
            raise ArgumentError(
                f"{name}: batch= returned {each.dtype.name}{each.shape} as result {index}, "
                f"expected {like.dtype.name}{shape}"
            )
