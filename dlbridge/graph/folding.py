"""Values known before the graph runs: constants, and shapes that are computed from shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.shape import Dims

if TYPE_CHECKING:
    from dlbridge.graph.tensor import Tensor


def constant_value(tensor: Tensor) -> Any:
    """Return the value of a Tensor as a read-only NumPy array, or None where it is not known."""
    if tensor.op.type == "Const":
        return tensor.op.attrs["value"].array
    return None


def constant_dims(tensor: Tensor) -> Dims | None:
    """Return a vector of integers as dimensions, None for -1 and for what is unknown."""
    value = constant_value(tensor)
    if value is not None:
        return tuple([None if dim < 0 else int(dim) for dim in value.reshape(-1)])
    dims = tensor._dims
    if dims is not None and len(dims) == 1 and dims[0] is not None:
        return (None,) * dims[0]
    return None
