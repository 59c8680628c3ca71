"""Static shapes: shapes of results as far as they are known before the graph runs.

A shape function gets an `Inference` and returns one entry for each result: a tuple of extents with
None for each unknown one, or None for an unknown rank. It raises ValueError where known shapes
contradict each other. It is called once, when the operation is created.

Constant folding gives it values that follow from constants and static shapes. A value is computed
when a shape function asks for it, never stored. A graph is data: only the op types of `FOLDED` are
evaluated, no call, kernel or function of a user, and within limits: of elements, of depth, and of
steps for all questions about one graph (`Budget`). Beyond them a value is unknown until the graph
runs. Integers may be partly known:
`tf.stack([tf.shape(x)[0], 10])` with an unknown batch is `[None, 10]`. Such values are NumPy arrays
of objects, which the ordinary NumPy kernels take that only move elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.execution.errors import OpError
from dlbridge.execution.registry import Context, find
from dlbridge.proto.datatypes import string
from dlbridge.shape import MAX_RANK, Dims
from dlbridge.signals import not_from_handler

if TYPE_CHECKING:
    from dlbridge.graph.core.operation import Operation, Tensor


MAX_SIZE = 2**63 - 1
"""Of an extent, and of the number of elements."""


class Inference:
    """The inputs of an operation that is being created, as a shape function sees them.

    Attributes:
        type, name: op type and full name of the operation.
        inputs: its input Tensors, lists flattened.
        attrs: its decoded attributes, defaults filled in.
        output_count: the number of its results.
    """

    __slots__ = ("attrs", "inputs", "name", "output_count", "type")

    def __init__(
        self, type_: str, name: str, inputs: Sequence[Tensor], attrs: dict[str, Any], count: int
    ) -> None:
        self.type = type_
        self.name = name
        self.inputs = inputs
        self.attrs = attrs
        self.output_count = count

    def dims(self, index: int) -> Dims | None:
        """Return the static shape of an input: None for an unknown rank."""
        return self.inputs[index]._dims

    def constant(self, index: int) -> Any:
        """Return the value of an input as a NumPy array, or None where it is not known yet."""
        return constant_value(self.inputs[index]) if is_short(self.inputs[index]) else None

    def integer(self, index: int) -> int | None:
        """Return the value of an input, one integer, or None where it is not known yet.

        Raises:
            ValueError: it is not a scalar.
        """
        require_rank(self.dims(index), 0, self)
        value = self.constant(index)
        return None if value is None else int(value)

    def constant_dims(self, index: int) -> Dims | None:
        """Return the input, a vector of integers, as dimensions; -1 and unknown values are None.

        None when not even their number is known.
        """
        return constant_dims(self.inputs[index]) if is_short(self.inputs[index]) else None

    def error(self, text: str) -> ValueError:
        """Return an error about the shapes of the inputs, with operation and shapes in its text."""
        shapes = ", ".join(map(describe, (each._dims for each in self.inputs)))
        return ValueError(
            f"{text} for {self.name!r} (op: {self.type!r}) with input shapes: {shapes}."
        )


def describe(dims: Dims | None) -> str:
    """Return a shape as the texts of errors have it: `[2,?]`, or `<unknown>`."""
    if dims is None:
        return "<unknown>"
    return f"[{','.join('?' if dim is None else str(dim) for dim in dims)}]"


def checked(shape: Callable[[Inference], Sequence[Dims | None]]) -> Any:
    """Return a shape function that refuses results which no tensor can have.

    The functions of this module return valid shapes for valid shapes.
    """
    if shape.__module__ == __name__:
        return shape

    def run(c: Inference) -> Sequence[Dims | None]:
        found = shape(c)
        for dims in found:
            if dims is not None:
                _check_dims(dims, c)
        return found

    return run


def _check_dims(dims: Dims, c: Inference) -> None:
    """Raise unless each extent, and the number of elements, is from 0 to `MAX_SIZE`."""
    if len(dims) > MAX_RANK:
        raise c.error(f"The result would have {len(dims)} dimensions; at most are {MAX_RANK}")
    size = 1
    for dim in dims:
        if dim is not None:
            size *= dim
            if not (0 <= dim <= MAX_SIZE and size <= MAX_SIZE):
                text = "extents and numbers of elements are from 0 to 2**63 - 1"
                raise c.error(f"The result would have the shape {describe(dims)}; {text}")


# ---- rules that many op types share ------------------------------------------------------------


def unchanged(c: Inference) -> list[Dims | None]:
    """The shape of the first input, for each result."""
    return [c.inputs[0]._dims] * c.output_count


def unknown(c: Inference) -> list[Dims | None]:
    """Every result has an unknown shape."""
    return [None] * c.output_count


def scalars(c: Inference) -> list[Dims | None]:
    """Every result is a scalar."""
    return [()] * c.output_count


def nothing(c: Inference) -> list[Dims | None]:  # noqa: ARG001
    """There are no results."""
    return []


def broadcast(c: Inference) -> list[Dims | None]:
    """Two inputs are broadcast against each other, as in NumPy."""
    one, other = c.inputs[0]._dims, c.inputs[1]._dims
    if one == other and one is not None and None not in one:
        return [one]
    return [broadcast_dims(one, other, c)]


def broadcast_dims(one: Dims | None, other: Dims | None, c: Inference) -> Dims | None:
    """Return the broadcast shape of two; raise where they do not fit."""
    if one is None or other is None:
        return None
    if len(one) < len(other):
        one, other = other, one
    padded = (1,) * (len(one) - len(other)) + other
    return tuple([_broadcast_dim(a, b, c) for a, b in zip(one, padded, strict=True)])


def _broadcast_dim(a: int | None, b: int | None, c: Inference) -> int | None:
    if a == b:
        return a
    if a == 1:
        return b
    if b == 1:
        return a
    if a is None or b is None:
        return b if a is None else a
    raise c.error(f"Dimensions must be equal, but are {a} and {b}")


def merge(one: Dims | None, other: Dims | None, c: Inference) -> Dims | None:
    """Return the merged shape; raise where the two contradict each other."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        raise c.error(f"Shapes must be equal rank, but are {len(one)} and {len(other)}")
    return tuple([merge_dim(a, b, c) for a, b in zip(one, other, strict=True)])


def merge_dim(a: int | None, b: int | None, c: Inference) -> int | None:
    """Return the merged extent; raise where both are known and differ."""
    if a is None or b is None or a == b:
        return b if a is None else a
    raise c.error(f"Dimensions must be equal, but are {a} and {b}")


def require_rank(dims: Dims | None, rank: int, c: Inference) -> Dims:
    """Return the dimensions, unknown ones for an unknown rank; raise where the rank differs."""
    if dims is None:
        if rank > MAX_RANK:
            raise c.error(f"A tensor of {rank} dimensions would be needed; at most are {MAX_RANK}")
        return (None,) * rank
    if len(dims) != rank:
        raise c.error(f"Shape must be rank {rank} but is rank {len(dims)}")
    return dims


# ---- constant folding ----------------------------------------------------------------------------

# Larger or deeper values count as unknown: shapes are small.
MAX_ELEMENTS = 1024
MAX_CONSTANT = 1 << 16  # elements of a constant; a GraphDef of 30 bytes may have 2**60
MAX_DEPTH = 64

STEPS_OF_A_NODE = 16  # what each operation adds to the budget of its graph
STEPS_OF_A_KERNEL = 6  # to run one once, so that all runs together take no longer than an import
STEPS_TO_BEGIN = 1 << 12
ELEMENTS_OF_A_STEP = 64

# Op types that move elements, whose kernels therefore take unknown ones: how many of the inputs,
# from the first, are data. The others say how to move and must be known.
MOVES = {
    "Concat": (1, None), "ConcatV2": (0, -1), "ExpandDims": (0, 1), "Gather": (0, 1),
    "GatherV2": (0, 1), "Identity": (0, 1), "Pack": (0, None), "Reshape": (0, 1),
    "ReverseV2": (0, 1), "Slice": (0, 1), "Split": (1, 2), "SplitV": (0, 1), "Squeeze": (0, 1),
    "StopGradient": (0, 1), "StridedSlice": (0, 1), "Tile": (0, 1), "Transpose": (0, 1),
    "Unpack": (0, 1),
}  # fmt: skip

# The op types that are evaluated: each takes time and memory in proportion to what goes in and
# comes out, which excludes convolutions, products of matrices, and windows of any size.
FOLDED = frozenset(MOVES) | {
    "Abs", "Add", "AddN", "AddV2", "All", "Any", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseOr",
    "BitwiseXor", "BroadcastArgs", "BroadcastTo", "Cast", "Ceil", "ClipByValue", "ConcatOffset",
    "Cumprod", "Cumsum", "Div", "DivNoNan", "DynamicStitch", "Equal", "Exp", "Fill", "Floor",
    "FloorDiv", "FloorMod", "GatherNd", "Greater", "GreaterEqual", "Identity",
    "IdentityN", "Inv", "Invert", "InvertPermutation", "LeftShift", "Less", "LessEqual",
    "LinSpace", "Log", "LogicalAnd", "LogicalNot", "LogicalOr", "Max", "Maximum", "Mean", "Min",
    "Minimum", "MirrorPad", "Mod", "Mul", "Neg", "NotEqual", "OnesLike", "Pad", "PadV2", "Pow",
    "PreventGradient", "Prod", "Range", "RealDiv", "Reciprocal", "Reverse", "RightShift",
    "Rint", "Roll", "Round", "Rsqrt", "Select", "SelectV2", "Sign", "Snapshot", "Sqrt",
    "Square", "SquaredDifference", "Sub", "Sum", "TruncateDiv", "TruncateMod", "UnravelIndex",
    "Xdivy", "ZerosLike",
}  # fmt: skip


class Budget:
    """How many more steps of constant folding a graph has, so that a crafted one stays cheap.

    Attributes:
        steps: what is left. Each operation that is created adds some; each value that is looked at,
            each kernel, and each `ELEMENTS_OF_A_STEP` elements that are computed with, take some.
    """

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = STEPS_TO_BEGIN

    def take(self, steps: int) -> bool:
        """Return whether so many steps are left, and take them."""
        self.steps -= steps
        if self.steps >= 0:
            return True
        self.steps = 0
        return False


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
        value = _constant(tensor.op)
        if value is None or value.size < ELEMENTS_OF_A_STEP:
            return value
        return value if tensor.graph._folding.take(value.size // ELEMENTS_OF_A_STEP) else None
    return _Question(tensor.graph._folding).value(tensor, 0)


def _constant(op: Operation) -> Any:
    """Return the value of a constant, unless it is of another type than the operation."""
    value = op.attrs["value"]
    return value.array if value.dtype is op.output_types[0] else None


class _Question:
    """The computation of one value, with the values found on the way."""

    def __init__(self, budget: Budget) -> None:
        self.known: dict[Tensor, Any] = {}
        self.budget = budget

    def value(self, tensor: Tensor, depth: int) -> Any:
        """Return the known part of a value, or None."""
        if tensor in self.known:
            return self.known[tensor]
        op = tensor.op
        found = None
        if op.type == "Const":
            found = _constant(op) if is_short(tensor) else None
        elif depth < MAX_DEPTH and _is_small(tensor) and self.budget.take(1 + len(op.inputs)):
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
        if op.type not in FOLDED or not op.inputs:
            return None
        first, last = MOVES.get(op.type, (0, 0))
        data = range(len(op.inputs))[first:last]
        values = []
        for i, tensor in enumerate(op.inputs):
            value = self.value(tensor, depth + 1)
            if value is None or (value.dtype == object and i not in data):
                return None
            values.append(value)
        elements = sum(value.size for value in values)
        if not self.budget.take(STEPS_OF_A_KERNEL + elements // ELEMENTS_OF_A_STEP):
            return None
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
    except not_from_handler(OverflowError):  # an extent that int32 cannot hold
        return None


def _run_kernel(op: Operation, values: list[Any], index: int) -> Any:
    try:
        results = find(op, "numpy").factory(op, Context("numpy"))(*values)
    except not_from_handler(OpError, ValueError, TypeError):
        return None  # it will fail when it runs, or take what is unknown now
    return np.asarray(results if len(op.outputs) == 1 else results[index])
