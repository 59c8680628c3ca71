"""Batches: what `batch=` means under tf.vectorized_map, and so for jacobians.

    "sequential"   TensorFlow loops over the batch, as it does for every op that it does not know
    "broadcast"    one call, with the batch as one more dimension at the head of each pack
    a function     is called with the stacked tensors

Where the rule does not apply (a scalar that differs from call to call, say), it is the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow
from tensorflow.python.ops.parallel_for import pfor

from dlbridge.errors import ArgumentError, DLBridgeError, KernelError
from dlbridge.frameworks.tensorflow.node import Node, read_node
from dlbridge.frameworks.tensorflow.op import CALL, trace

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema


def register() -> None:
    """Tell TensorFlow how the op is vectorised."""
    pfor.RegisterPFor(CALL)(_vectorise)


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
    _check(node, stacked, given.op.outputs, size if isinstance(size, int) else None)
    return stacked


def _size(given: Any) -> Any:
    """Return the length of the batch, a symbolic tensor where it is not known yet."""
    stacked = [each.t.shape for each in given.inputs if each.is_stacked]
    known = [shape[0] for shape in stacked if shape.rank and shape[0] is not None]
    return known[0] if known else given.pfor.loop_len_vector[0]


def _check(node: Node, made: list[Any], single: Sequence[Any], size: int | None) -> None:
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
