"""Static shapes: shapes of results as far as they are known before the graph runs.

A shape function gets an `Inference` and returns one entry for each result: a tuple of extents with
None for each unknown one, or None for an unknown rank. It raises ValueError where known shapes
contradict each other. It is called once, when the operation is created.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.graph.core.folding import constant_dims, constant_value, is_short
from dlbridge.shape import MAX_RANK, Dims

if TYPE_CHECKING:
    from dlbridge.graph.core.tensor import Tensor

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
