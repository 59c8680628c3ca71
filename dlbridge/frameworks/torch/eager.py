"""Differentiated calls of plain tensors in eager mode: one torch.autograd.Function for each kernel.

Forward and backward call C, without a trip through torch's dispatcher. What is kept is what the
rule of `operators` keeps: the tensors that the vjp names, and what its gradients must look like.

Everything else is left to the operator: modes, transforms, tracing, subclasses, tangents, other
devices and layouts than C takes, kernels in Python and those without a vjp. Whether C takes the
tensors is known when it is called, and before it has done anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import Parameter

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.frameworks.torch.internals import probe
from dlbridge.frameworks.torch.operators import is_differentiable, refuse_foreign
from dlbridge.kernels import gradients
from dlbridge.kernels.kernel import Kernel, Shortcut
from dlbridge.kernels.schema import MISSING, Described, Schema, cotangent_name

_PLAIN = frozenset((torch.Tensor, Parameter))
_PROBE = probe()  # C may be called with it, unless a mode or a transform is on
_SAVED, _SCALARS, _COTANGENTS = range(3)  # where a value that a rule asks for is


class _DeclinedError(Exception):
    """C does not take these tensors, and nothing has happened."""


def make(kernel: Kernel) -> Shortcut | None:
    """Return the way of a kernel's differentiated calls; None where the operator serves them all.

    It returns NotImplemented for a call that the operator must serve.
    """
    schema = kernel.schema
    if schema is None or not schema.results or schema.mutated:
        return None
    if any(each.framework is not None for each in kernel.functions.values()):
        return None
    vjp = gradients.make_vjp(kernel)
    if vjp is None or vjp.rule.is_derived:
        return None
    allows = native.torch_call_allows if kernel.autocast is None else native.torch_direct_allows
    return Shortcut("torch", _caller(schema, _function(schema, vjp), allows))


def _caller(
    schema: Schema, function: Any, allows: Callable[[Any], bool]
) -> Callable[[Kernel, Any, Any], Any]:
    count = len(schema.parameters)
    places = [place for place, part in enumerate(schema.parameters) if part.is_tensor]
    is_straight = len(schema.positional) == count
    is_grad_enabled = torch.is_grad_enabled
    apply = super(torch.autograd.function._SingleLevelFunction, function).apply

    def call(kernel: Kernel, args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != count or not is_straight:
            args = _arrange(schema, args, kwargs)
            if args is None:
                return NotImplemented
        is_recorded = False
        for place in places:
            each = args[place]
            if each is not None:
                if type(each) not in _PLAIN:
                    return NotImplemented
                is_recorded = is_recorded or each.requires_grad
        if not (
            is_recorded
            and is_grad_enabled()
            and allows(_PROBE)
            and getattr(forward_ad, "_current_level", 0) < 0
        ):
            return NotImplemented
        try:
            return apply(kernel, *args)
        except _DeclinedError:
            return NotImplemented

    return call


def _arrange(schema: Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """Return all arguments in the schema's order; None where the schema itself must look."""
    if len(args) > len(schema.positional):
        return None
    values, left = list(args), len(kwargs)
    for part in schema.parameters[len(args) :]:
        if part.name in kwargs:
            left -= 1
        value = kwargs.get(part.name, part.default)
        if value is MISSING:
            return None
        values.append(value)
    return None if left else values


def _kept(scalar: Any) -> Any:
    return tuple(scalar) if isinstance(scalar, list) else scalar  # which may change until then


def _function(schema: Schema, vjp: gradients.Vjp) -> Any:
    """Return the torch.autograd.Function of a kernel, which is called as the operator's rule is."""
    by_position = len(schema.positional)
    names = [part.name for part in schema.parameters[by_position:]]
    places = [place for place, part in enumerate(schema.parameters) if part.is_tensor]
    scalars = [place for place, part in enumerate(schema.parameters) if not part.is_tensor]
    kept = [places[place] for place in vjp.saved.primals]
    kept_results = vjp.saved.results
    keeps_all = list(vjp.saved.primals) == list(range(len(places)))
    call, differentiate, check = native.torch_call_plain, _rule(schema, vjp), _check(schema, vjp)
    rule, are_alike, count = vjp.rule.function, native.torch_alike, len(places)
    has_others = not all(
        result.dtype.dtypes
        and all(dtype.is_floating or dtype.is_complex for dtype in result.dtype.dtypes)
        for result in schema.results
    )

    def forward_tensors(ctx: Any, kernel: Kernel, *tensors: Any) -> Any:
        made = call(kernel, *tensors)
        if made is NotImplemented:
            raise _DeclinedError
        ctx.save_for_backward(*tensors)
        return made

    def backward_tensors(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad
        value = rule(*saved, *cotangents)
        is_whole = type(value) is tuple and len(value) == count and are_alike(value, saved)
        found = value if is_whole else check(value, saved, None)
        return (None, *found) if all(needed[1:]) else _needed(found, places, needed)

    def forward(ctx: Any, kernel: Kernel, *args: Any) -> Any:
        if names:
            named = dict(zip(names, args[by_position:], strict=True))
            made = call(kernel, *args[:by_position], **named)
        else:
            made = call(kernel, *args)
        if made is NotImplemented:
            raise _DeclinedError
        tensors = [args[place] for place in places] if scalars else args
        saved = [args[place] for place in kept]
        if kept_results or has_others:
            results = made if type(made) is tuple else (made,)
            saved += [results[place] for place in kept_results]
            ctx.mark_non_differentiable(*[each for each in results if not is_differentiable(each)])
        ctx.save_for_backward(*saved)
        if scalars:
            ctx.scalars = [_kept(args[place]) for place in scalars]
        if not keeps_all:
            ctx.expected = _expected(tensors)
        return made

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        given, expected = ctx.scalars if scalars else (), None if keeps_all else ctx.expected
        saved = ctx.saved_tensors
        found = check(differentiate(saved, given, cotangents), saved, expected)
        return _needed(found, places, ctx.needs_input_grad)

    is_plain = keeps_all and not (scalars or names or kept_results or has_others)
    ways = (forward, backward)
    if is_plain and len(vjp.wanted) == count and _takes_in_order(schema, vjp):
        ways = (forward_tensors, backward_tensors)
    members = {"forward": staticmethod(ways[0]), "backward": staticmethod(ways[1])}
    base = torch.autograd.function._SingleLevelFunction
    return type(schema.qualified.replace("::", "_"), (base,), members)


def _needed(found: Sequence[Any], places: list[int], needed: Sequence[bool]) -> tuple[Any, ...]:
    """Return None for the kernel, then the gradients of all arguments that need one."""
    gradients: list[Any] = [None] * len(needed)
    for place, gradient in zip(places, found, strict=True):
        if needed[place + 1]:
            gradients[place + 1] = gradient
    return tuple(gradients)


def _takes_in_order(schema: Schema, vjp: gradients.Vjp) -> bool:
    """Return whether the rule takes all tensors, then the cotangents, by position."""
    rule, code = vjp.rule, getattr(vjp.rule.function, "__code__", None)
    sources = _sources(schema, vjp)
    order = [(_SAVED, place) for place in range(len(schema.tensors))]
    order += [(_COTANGENTS, place) for place in range(len(schema.results))]
    return (
        type(rule.function) is FunctionType
        and isinstance(code, CodeType)
        and code.co_varnames[: code.co_argcount] == rule.names
        and [sources[name] for name in rule.names] == order
    )


def _rule(schema: Schema, vjp: gradients.Vjp) -> Callable[..., Any]:
    """Return a function that calls the rule of `vjp` with the saved values."""
    rule = vjp.rule
    sources = _sources(schema, vjp)
    first = [sources[name] for name in rule.names[: rule.by_position]]
    named = [(name, *sources[name]) for name in rule.names[rule.by_position :]]
    function = rule.function

    def differentiate(saved: Any, scalars: Any, cotangents: Any) -> Any:
        pools = saved, scalars, cotangents
        values = [pools[pool][place] for pool, place in first]
        if named:
            value = function(*values, **{name: pools[pool][place] for name, pool, place in named})
        else:
            value = function(*values)
        if rule.labels:
            several = value if isinstance(value, tuple) else (value,)
            value = dict(zip(rule.labels, several, strict=True))
        return value

    return differentiate


def _check(schema: Schema, vjp: gradients.Vjp) -> Callable[..., Sequence[Any]]:
    """Return a function that checks what the rule returned, as `vjp` does, in fewer steps."""
    wanted, count = vjp.wanted, len(schema.tensors)
    has_all, are_alike = list(wanted) == list(range(count)), native.torch_alike

    def check(value: Any, saved: Any, expected: Any) -> Sequence[Any]:
        # without `expected`, the first of `saved` are the tensors of the call
        is_whole = has_all and type(value) is tuple and len(value) == count
        if is_whole and expected is None and are_alike(value, saved):
            whole: tuple[Any, ...] = value
            return whole
        expected = expected or _expected(saved[:count])
        if type(value) is not tuple or len(value) != len(wanted):
            found = list(vjp.collect(value))
        elif has_all:
            found = list(value)
        else:
            found = [None] * count
            for place, one in zip(wanted, value, strict=True):
                found[place] = one
        is_plain = True
        for place in wanted:
            one, like = found[place], expected[place]
            if one is None or (
                type(one) is torch.Tensor
                and like is not None
                and one.dtype is like[1]
                and one.shape == like[0]
            ):
                continue
            is_plain = False
            found[place] = vjp.check(place, one, _described(like))
        if not is_plain:
            refuse_foreign(schema.qualified, "vjp", found)
        return found

    return check


def _expected(tensors: Sequence[Any]) -> list[Any]:
    return [None if each is None else (each.shape, each.dtype) for each in tensors]


def _described(like: Any) -> Described | None:
    return None if like is None else Described(tuple(like[0]), DType(like[1]))


def _sources(schema: Schema, vjp: gradients.Vjp) -> dict[str, tuple[int, int]]:
    """Return where the values are that a rule may ask for: the pool, and the place in it."""
    primals = [schema.tensors[place].name for place in vjp.saved.primals]
    results = [schema.results[place].name for place in vjp.saved.results]
    found = {name: (_SAVED, place) for place, name in enumerate([*primals, *results])}
    found |= {part.name: (_SCALARS, place) for place, part in enumerate(schema.scalars)}
    for place, result in enumerate(schema.results):
        found[cotangent_name(schema, result)] = _COTANGENTS, place
    return found | {
        name: (_COTANGENTS, place) for name, place in gradients.cotangent_names(schema).items()
    }
