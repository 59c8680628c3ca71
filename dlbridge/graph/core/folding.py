"""Constant folding: values that follow from constants and static shapes before the graph runs.

A value is computed when a shape function asks for it, never stored. Integers may be partly known:
`tf.stack([tf.shape(x)[0], 10])` with an unknown batch is `[None, 10]`. Such values are NumPy arrays
of objects, which the ordinary NumPy kernels take that only move elements.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.execution.errors import OpError
from dlbridge.execution.registry import Context, find
from dlbridge.proto.datatypes import string
from dlbridge.shape import Dims

if TYPE_CHECKING:
    from dlbridge.graph.core.operation import Operation
    from dlbridge.graph.core.tensor import Tensor

# Larger or deeper values count as unknown: shapes are small.
MAX_ELEMENTS = 1024
MAX_CONSTANT = 1 << 16  # elements of a constant; a GraphDef of 30 bytes may have 2**60
MAX_DEPTH = 64

# Op types that move elements, whose kernels therefore take unknown ones: how many of the inputs,
# from the first, are data. The others say how to move and must be known.
MOVES = {
    "Concat": (1, None), "ConcatV2": (0, -1), "ExpandDims": (0, 1), "Gather": (0, 1),
    "GatherV2": (0, 1), "Identity": (0, 1), "Pack": (0, None), "Reshape": (0, 1),
    "ReverseV2": (0, 1), "Slice": (0, 1), "Split": (1, 2), "SplitV": (0, 1), "Squeeze": (0, 1),
    "StopGradient": (0, 1), "StridedSlice": (0, 1), "Tile": (0, 1), "Transpose": (0, 1),
    "Unpack": (0, 1),
}  # fmt: skip


def constant_value(tensor: Tensor) -> Any:
    """Return the value of a Tensor as a read-only NumPy array, or None where it is not known."""
    value = partial_value(tensor)
    if value is None or value.dtype != object:
        return value
    if None in value.reshape(-1).tolist():
        return None
    return value if tensor.dtype is string else value.astype(tensor.dtype.numpy)


def is_short(tensor: Tensor) -> bool:
    """Return whether the value is not of a constant too large for a shape function to look at."""
    op = tensor.op
    return op.type != "Const" or op.attrs["value"].size <= MAX_CONSTANT


def constant_dims(tensor: Tensor) -> Dims | None:
    """Return a vector of integers as dimensions, None for -1 and for unknown values.

    None when not even their number is known, and for the scalar -1, which means any shape.
    """
    value = partial_value(tensor)
    if value is None or (value.ndim == 0 and value[()] == -1):
        return None
    return tuple([None if dim in (None, -1) else int(dim) for dim in value.reshape(-1)])


def partial_value(tensor: Tensor) -> Any:
    """Return the known values of an integer Tensor: an array, of objects if some are None."""
    if tensor.op.type == "Const":
        return _constant(tensor.op)
    return _Question().value(tensor, 0)


def _constant(op: Operation) -> Any:
    """Return the value of a constant, unless it is of another type than the operation."""
    value = op.attrs["value"]
    return value.array if value.dtype is op.output_types[0] else None


class _Question:
    """The computation of one value, with the values found on the way."""

    def __init__(self) -> None:
        self.known: dict[Tensor, Any] = {}

    def value(self, tensor: Tensor, depth: int) -> Any:
        """Return the known part of a value, or None."""
        if tensor in self.known:
            return self.known[tensor]
        op = tensor.op
        found = None
        if op.type == "Const":
            found = _constant(op) if is_short(tensor) else None
        elif depth < MAX_DEPTH and _is_small(tensor):
            found = RULES.get(op.type, _Question.run)(self, op, tensor.value_index, depth)
            if found is None and tensor.dtype.is_integer:
                found = np.full(tensor._dims, None, object)
        self.known[tensor] = found
        return found

    def shape(self, op: Operation, index: int, depth: int) -> Any:
        """Shape and ShapeN."""
        dims = op.inputs[index]._dims
        return None if dims is None else _array(dims, op)

    def size(self, op: Operation, index: int, depth: int) -> Any:
        """The product of the extents."""
        dims = op.inputs[0]._dims
        return None if dims is None or None in dims else _array(prod(dims), op)

    def rank(self, op: Operation, index: int, depth: int) -> Any:
        """The number of extents."""
        dims = op.inputs[0]._dims
        return None if dims is None else _array(len(dims), op)

    def cast(self, op: Operation, index: int, depth: int) -> Any:
        """Integers keep their values, and unknown ones stay unknown."""
        value = self.value(op.inputs[0], depth + 1)
        if value is None or value.dtype != object:
            return self.run(op, index, depth)
        return value if op.output_types[0].is_integer else None

    def fed(self, op: Operation, index: int, depth: int) -> Any:
        """A value that a run may replace is unknown before it."""

    def run(self, op: Operation, index: int, depth: int) -> Any:
        """Run the NumPy kernel, if what must be known of the inputs is."""
        if op.stateful or not op.inputs:
            return None
        first, last = MOVES.get(op.type, (0, 0))
        data = range(len(op.inputs))[first:last]
        values = []
        for i, tensor in enumerate(op.inputs):
            value = self.value(tensor, depth + 1)
            if value is None or (value.dtype == object and i not in data):
                return None
            values.append(value)
        return _run_kernel(op, values, index)


RULES: dict[str, Callable[[_Question, Operation, int, int], Any]] = {
    "Cast": _Question.cast,
    "PlaceholderWithDefault": _Question.fed,
    "Rank": _Question.rank,
    "Shape": _Question.shape,
    "ShapeN": _Question.shape,
    "Size": _Question.size,
}


def _is_small(tensor: Tensor) -> bool:
    dims = tensor._dims
    return dims is not None and None not in dims and prod(dims) <= MAX_ELEMENTS  # type: ignore[arg-type]


def _array(value: Any, op: Operation) -> Any:
    unknown = isinstance(value, tuple) and None in value
    try:
        return np.array(value, object if unknown else op.output_types[0].numpy)
    except OverflowError:  # an extent that int32 cannot hold
        return None


def _run_kernel(op: Operation, values: list[Any], index: int) -> Any:
    try:
        results = find(op, "numpy").factory(op, Context("numpy"))(*values)
    except (OpError, ValueError, TypeError):
        return None  # it will fail when it runs, or take what is unknown now
    return np.asarray(results if len(op.outputs) == 1 else results[index])
