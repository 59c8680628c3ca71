"""What an operator's results are without its kernel: for tracing, meta tensors and export.

Shapes may be symbolic. What does not fit the schema is refused in the same words as in a real call;
the memory of a tensor is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.frameworks.torch.registry import add_rules, current, overload_name
from dlbridge.kernels.refusals import QUALITIES
from dlbridge.kernels.schema.errors import negative, refusal, unfit
from dlbridge.kernels.schema.parts import Described

if TYPE_CHECKING:
    from dlbridge.frameworks.torch.operator import Operator
    from dlbridge.kernels.schema.schema import Schema


def fake(name: str, is_out: bool) -> Callable[..., Any]:
    """Return the fake kernel of an operator: that of a name, or its `out` overload."""

    def results(*args: Any, **kwargs: Any) -> Any:
        operator, _ = current(name)
        schema = operator.schema
        tensors, scalars, outs = operator.unpack(is_out, args, kwargs)
        made = check(schema, tensors, scalars, outs or None)
        if outs or schema.mutated:
            refuse_gradients(schema, [*tensors, *outs])
        if outs or not made:
            return None
        device = next((each.device for each in tensors if each is not None), "cpu")
        new = [torch.empty(shape, dtype=dtype.to("torch"), device=device) for shape, dtype in made]
        return tuple(new) if len(new) > 1 else new[0]

    return results


def check(
    schema: Schema,
    tensors: Sequence[Any],
    scalars: Sequence[Any],
    outs: Sequence[Any] | None,
) -> list[tuple[Any, DType]]:
    """Return shape and dtype of each result, or raise what a call with these tensors raises."""
    described = [None if each is None else describe(each) for each in tensors]
    bindings = schema.bind(described, scalars)
    _bound_sizes(schema, scalars)
    made = schema.results_of(bindings)
    if outs is not None:
        schema.check_out(bindings, [describe(each) for each in outs])
    _refuse_devices(schema, [*tensors, *(outs or ())])
    return made


def _bound_sizes(schema: Schema, scalars: Sequence[Any]) -> None:
    """Tell torch that symbols are not negative; of those that come out of data it knows nothing."""
    for place, name in schema.sizes:
        value = scalars[place]
        if isinstance(value, torch.SymInt):
            refused = str(negative(schema, name, value))
            torch._check(value >= 0, lambda text=refused: text)


def describe(tensor: Any) -> Described:
    """Return what a schema looks at of a tensor."""
    return Described(tuple(tensor.shape), DType(tensor.dtype), "torch.Tensor", str(tensor.device))


def _refuse_devices(schema: Schema, tensors: Sequence[Any]) -> None:
    present = [(place, each) for place, each in enumerate(tensors) if each is not None]
    for place, tensor in present[1:]:
        first, like = present[0]
        if tensor.device != like.device:
            name = schema.place_name(place)
            expected = f"{schema.part(place).expected()} on {like.device} as "
            expected += repr(schema.place_name(first))
            hint = "move the tensors to one device"
            got = describe(tensor).text()
            raise ExchangeError("device", refusal(schema.qualified, name, expected, got, hint))


def refuse_gradients(schema: Schema, tensors: Sequence[Any]) -> None:
    """Refuse a call that writes into its arguments where autograd would have to know of it."""
    for place, tensor in enumerate(tensors):
        if tensor is not None and needs_gradient(tensor):
            wanted, found, hint = QUALITIES["requires_grad"]
            got = describe(tensor)
            raise unfit(schema, place, "requires_grad", (wanted, found), got, hint)


def needs_gradient(tensor: Any) -> bool:
    """Return whether autograd, backward or forward, has to know what happens to a tensor."""
    return (tensor.requires_grad and torch.is_grad_enabled()) or has_tangent(tensor)


def has_tangent(tensor: Any) -> bool:
    """Return whether a tensor carries a tangent of forward-mode differentiation."""
    if getattr(forward_ad, "_current_level", -1) < 0:
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


@add_rules
def _register(operator: Operator, library: Any, is_out: bool) -> None:
    name = overload_name(operator.name, is_out)
    torch.library.register_fake(name, fake(operator.name, is_out), lib=library)
    if is_out or operator.schema.mutated:
        # The body refuses what autograd would have to know of, so autograd need not look.
        own = overload_name(operator.schema.name, is_out)
        library.impl(own, torch.library.fallthrough_kernel, "Autograd")
