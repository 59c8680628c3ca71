"""einops on Tensors: `rearrange`, `repeat`, `pack`, `unpack` and `parse_shape`.

einops finds this backend among the subclasses of its own. Results share memory with the argument
where strides can describe them, and are copies else, as with NumPy. A Tensor has no arithmetic, so
`reduce` and `einsum` are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from einops._backends import AbstractBackend

from dlbridge.errors import UnsupportedTypeError, ViewError
from dlbridge.tensor.memory import empty
from dlbridge.tensor.tensor import Tensor


class TensorBackend(AbstractBackend):  # type: ignore[misc]  # einops says no types
    """The backend of einops for `dlbridge.Tensor`."""

    framework_name = "dlbridge"

    def is_appropriate_type(self, tensor: object) -> bool:
        """Return whether this backend takes `tensor`."""
        return isinstance(tensor, Tensor)

    def to_numpy(self, x: Tensor) -> Any:
        """Return `x` as `einops.asnumpy` gives it."""
        return x.numpy()

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a view, or that of a compact copy."""
        try:
            return x.reshape(shape)
        except ViewError:
            return x.contiguous().reshape(shape)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        """Return a view with one more dimension, of one element."""
        return x.expand_dims(new_position)

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        """Return a view that repeats dimensions of one element: einops asks for no others."""
        return x.broadcast_to([a * b for a, b in zip(x.shape, repeats, strict=True)])

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        """Return a copy of the tensors of a list, along a new first dimension."""
        return self.concat([each.expand_dims(0) for each in tensors], 0)

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Return a copy of tensors that differ in one extent only, one behind the other."""
        first = tensors[0]
        shape = list(first.shape)
        shape[axis] = sum(each.shape[axis] for each in tensors)
        made = empty(shape, dtype=first.dtype, device=first.device)
        at = 0
        for each in tensors:
            end = at + each.shape[axis]
            made[(*[slice(None)] * axis, slice(at, end))] = each
            at = end
        return made

    def is_float_type(self, x: Tensor) -> NoReturn:
        """Refuse a mean, before which einops asks this."""
        _refuse("reduce")

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> NoReturn:
        """Refuse a reduction."""
        _refuse("reduce")

    def einsum(self, pattern: str, *x: Tensor) -> NoReturn:
        """Refuse a sum of products."""
        _refuse("einsum")


def _refuse(call: str) -> NoReturn:
    raise UnsupportedTypeError(
        f"einops.{call}: a dlbridge.Tensor has no arithmetic; convert it to a framework first, "
        "as x.numpy() does"
    )
