"""An operator beyond its body: without memory, differentiated, batched.

Fake kernels tell what the results are, for tracing, meta tensors and export. Shapes may be
symbolic. What does not fit the schema is refused with the words of a real call; the memory of a
tensor is never read.

Derivatives are the kernel's `vjp=` and `jvp=`. The rule stands at the dispatcher's autograd key,
which eager autograd, torch.func and the traces of torch.compile all pass. A call of plain tensors
runs at once; one that needs no derivative goes on to the next key. Without `vjp=` the results still
require a gradient, and backward raises: gradients are never dropped.

torch.vmap computes a batch by the kernel's `batch=`.

Rules find operator and kernel by name when they run (`current`), since a name may be wrapped again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch.autograd import forward_ad

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError, KernelError, UnsupportedTypeError
from dlbridge.exchange import protocol
from dlbridge.kernels import gradients
from dlbridge.kernels.kernel import Kernel, find
from dlbridge.kernels.refusals import QUALITIES
from dlbridge.kernels.schema import (
    Described,
    Parameter,
    Result,
    Schema,
    negative,
    refusal,
    unfit,
)

if TYPE_CHECKING:
    from dlbridge.frameworks.torch.operators import Operator

Lookup = Callable[[str], "tuple[Operator, Kernel]"]


def add_rules(operator: Operator, library: Any, is_out: bool, current: Lookup) -> None:
    """Register everything but the body of an overload, once.

    Args:
        operator: the operators of a name.
        library: the torch.library.Library of its namespace.
        is_out: the overload with `out`, or the functional one.
        current: tells what the name means when a rule runs.
    """
    full = overload_name(operator.name, is_out)
    own = overload_name(operator.schema.name, is_out)
    torch.library.register_fake(full, fake(current, operator.name, is_out), lib=library)
    if is_out or operator.schema.mutated:
        # The body refuses what autograd would have to know of, so autograd need not look.
        library.impl(own, torch.library.fallthrough_kernel, "Autograd")
        library.impl(own, refuse_transforms(operator.name), "FuncTorchDynamicLayerFrontMode")
        return
    differentiate = autograd_kernel(current, operator.name)
    library.impl(own, differentiate, "Autograd", with_keyset=True)
    compute_batch = batching_rule(current, operator.name)
    torch.library.register_vmap(operator.name, compute_batch, lib=library)


def overload_name(name: str, is_out: bool) -> str:
    """Return the name of an overload, as libraries take it."""
    return f"{name}.out" if is_out else name


# ---- without memory ------------------------------------------------------------------------------


def fake(current: Lookup, name: str, is_out: bool) -> Callable[..., Any]:
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


def written(schema: Schema, tensors: Sequence[Any], outs: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the tensors of a call that the kernel writes, each with its place."""
    found = [(place, tensors[place]) for place in schema.mutated]
    found += enumerate(outs, len(schema.tensors))
    return [(place, tensor) for place, tensor in found if tensor is not None]


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


# ---- derivatives ---------------------------------------------------------------------------------


class Call:
    """One call below autograd, and what its derivatives have to know of it.

    Attributes:
        levels: the grad modes of the caller, backward and forward, within torch.func; else None.
            A rule runs with both modes off, and the levels around it would then take the call for
            a constant.
    """

    __slots__ = ("kernel", "keys", "levels", "operator", "scalars")

    def __init__(self, operator: Operator, kernel: Kernel, keys: Any, scalars: list[Any]) -> None:
        self.operator = operator
        self.kernel = kernel
        self.keys = keys
        self.scalars = scalars
        self.levels: tuple[bool, bool] | None = None
        if _C._are_functorch_transforms_active():
            self.levels = torch.is_grad_enabled(), _C._is_fwd_grad_enabled()

    def run(self, tensors: Sequence[Any]) -> Any:
        """Run the operator on these tensors."""
        args, kwargs = self.operator.pack(tensors, self.scalars)
        if self.levels is None:
            return go_on(self.operator, self.keys, args, kwargs)
        with _grad_modes(*self.levels):
            return go_on(self.operator, self.keys, args, kwargs)


@contextmanager
def _grad_modes(backward: bool, forward: bool) -> Iterator[None]:
    with torch.set_grad_enabled(backward), forward_ad._set_fwd_grad_enabled(forward):
        yield


def go_on(operator: Operator, keys: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Call the operator at the dispatch keys after autograd's."""
    with _C._AutoDispatchBelowAutograd():
        return operator.default.redispatch(keys & _C._after_autograd_keyset, *args, **kwargs)


class Rule(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """The derivative of an operator, at one level: the dispatcher has sorted the levels out."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> Any:
        """Run the operator."""
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the derivatives need."""
        call, *tensors = inputs
        results = output if isinstance(output, tuple) else (output,)
        ctx.call = call
        ctx.mark_non_differentiable(*[each for each in results if not is_differentiable(each)])
        ctx.vjp, ctx.jvp = _derivatives(call.kernel)
        ctx.expected = [None if each is None else describe(each) for each in tensors]
        if ctx.vjp is not None:
            ctx.save_for_backward(
                *_keep(tensors, ctx.vjp.saved.primals), *_keep(results, ctx.vjp.saved.results)
            )
        if ctx.jvp is not None:
            ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Return the gradients of the tensors, by the kernel's vjp."""
        call = ctx.call
        if ctx.vjp is None:
            raise no_rule(call.kernel, "vjp", "gradient")
        saved = list(ctx.saved_tensors)
        primals, results = saved[: len(ctx.expected)], saved[len(ctx.expected) :]
        found = ctx.vjp(primals, call.scalars, results, list(cotangents), ctx.expected)
        _refuse_foreign(call.kernel, "vjp", found)
        needed = ctx.needs_input_grad[1:]
        return None, *[grad if need else None for grad, need in zip(found, needed, strict=True)]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangents of the results, by the kernel's jvp."""
        call = ctx.call
        if ctx.jvp is None:
            raise no_rule(call.kernel, "jvp", "tangent")
        if call.levels is None:
            return _tangents(ctx, ctx.saved_tensors, tangents[1:])
        with _grad_modes(*call.levels):
            # Forward mode is on for the levels around, so tangents of this one must not be seen.
            primals = [
                None if each is None else forward_ad.unpack_dual(each, level=0).primal
                for each in ctx.saved_tensors
            ]
            return _tangents(ctx, primals, tangents[1:])


def _tangents(ctx: Any, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    given = [
        torch.zeros_like(primal)
        if tangent is None and primal is not None and is_differentiable(primal)
        else tangent
        for primal, tangent in zip(primals, tangents, strict=True)
    ]
    found = tuple(ctx.jvp(primals, ctx.call.scalars, given))
    _refuse_foreign(ctx.call.kernel, "jvp", found)
    return found if len(found) > 1 else found[0]


def _refuse_foreign(kernel: Kernel, word: str, found: Sequence[Any]) -> None:
    """Refuse what a rule returned in arrays of others: torch could not differentiate on."""
    for each in found:
        if each is not None and not isinstance(each, torch.Tensor):
            raise UnsupportedTypeError(
                f"{kernel.name}: its {word} must return torch tensors for torch tensors; it "
                f"returned {protocol.describe(each)}; convert it, or pass a Kernel as {word}="
            )


def _derivatives(kernel: Kernel) -> tuple[Any, Any]:
    return gradients.make_vjp(kernel), gradients.make_jvp(kernel)


def is_differentiable(tensor: Any) -> bool:
    """Return whether a result can have a gradient."""
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _keep(tensors: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [each if place in places else None for place, each in enumerate(tensors)]


def no_rule(kernel: Kernel, word: str, what: str) -> KernelError:
    """Return the exception for a derivative that the kernel was wrapped without."""
    return KernelError(
        f"{kernel.name}: it has no {what}: it was wrapped without {word}=; give it one with "
        f"dlbridge.wrap(kernel, {word}=...), or pass tensors that need none"
    )


def autograd_kernel(current: Lookup, name: str) -> Callable[..., Any]:
    """Return what stands at the autograd key of the functional operator of a name."""

    def differentiate(keys: Any, *args: Any, **kwargs: Any) -> Any:
        result = native.torch_call_plain(find(name), *args, **kwargs)
        if result is not NotImplemented:
            return result
        operator, kernel = current(name)
        if not _is_needed(args, kwargs):
            return go_on(operator, keys, args, kwargs)
        tensors, scalars, _ = operator.unpack(False, args, kwargs)
        return _apply(rule(name), Call(operator, kernel, keys, scalars), tensors)

    return differentiate


def _is_needed(args: Sequence[Any], kwargs: Any) -> bool:
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return True
    if torch.is_grad_enabled() and _any_requires_grad(*args, **kwargs):
        return True
    # Graphs of torch.compile enter the level of torch.func.jvp without setting that number.
    return bool(_C._are_functorch_transforms_active())


def _any_of_these(*args: Any, **kwargs: Any) -> bool:
    return any(getattr(each, "requires_grad", False) for each in (*args, *kwargs.values()))


_any_requires_grad: Callable[..., bool] = getattr(_C, "_any_requires_grad", _any_of_these)


def _apply(made: Any, call: Call, tensors: list[Any]) -> Any:
    from torch._functorch.autograd_function import enable_single_level_autograd_function

    with enable_single_level_autograd_function():
        return made.apply(call, *tensors)


_RULES: dict[str, Any] = {}


def rule(name: str) -> Any:
    """Return the Rule of an operator: a class of its own, whose name shows up in `grad_fn`."""
    made = _RULES.get(name)
    if made is None:
        made = _RULES[name] = type(name.replace("::", "_"), (Rule,), {})
    return made


# ---- batches -------------------------------------------------------------------------------------


class Batch:
    """A call over a batch: batched tensors have the batch in front, the others are shared."""

    __slots__ = ("is_batched", "kernel", "operator", "scalars", "size", "tensors")

    def __init__(
        self, called: tuple[Operator, Kernel], size: int, in_dims: Any, args: Any, kwargs: Any
    ) -> None:
        self.operator, self.kernel = called
        tensors, self.scalars, _ = self.operator.unpack(False, args, kwargs)
        # Operators have all tensors by position, as torch batches nothing else.
        by_place = dict(zip((part.name for part in self.operator.layout.parameters), in_dims))  # noqa: B905
        dims = [by_place.get(part.name) for part in self.operator.schema.tensors]
        self.size = size
        self.is_batched = tuple(dim is not None for dim in dims)
        self.tensors = [
            each if dim is None else each.movedim(dim, 0)
            for each, dim in zip(tensors, dims, strict=True)
        ]

    def run(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Call the operator."""
        args, kwargs = self.operator.pack(tensors, self.scalars)
        found = self.operator.default(*args, **kwargs)
        return found if isinstance(found, tuple) else (found,)


def sequential(batch: Batch) -> tuple[Any, ...]:
    """Call the kernel once for each element of the batch."""
    if batch.size == 0:
        return _empty(batch)
    columns = [
        each.unbind(0) if is_batched else [each] * batch.size
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    rows = [batch.run(row) for row in zip(*columns, strict=True)]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _empty(batch: Batch) -> tuple[Any, ...]:
    shared = [
        each.new_empty(each.shape[1:]) if is_batched else each
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    device = next((each.device for each in shared if each is not None), None)
    return tuple(
        torch.empty((0, *shape), dtype=dtype.to("torch"), device=device)
        for shape, dtype in check(batch.operator.schema, shared, batch.scalars, None)
    )


def broadcast(batch: Batch) -> tuple[Any, ...]:
    """Call the kernel once: the batch is one more leading dimension of what has a pack in front."""
    schema = batch.operator.schema
    pairs = list(zip(schema.tensors, batch.is_batched, strict=True))
    fits = all(_has_room(part) for part, is_batched in pairs if is_batched)
    if not (fits and all(_has_room(result) for result in schema.results)):
        return sequential(batch)
    tensors = [
        each.expand(batch.size, *each.shape)
        if each is not None and _has_room(part) and not is_batched
        else each
        for each, (part, is_batched) in zip(batch.tensors, pairs, strict=True)
    ]
    return batch.run(tensors)


def _has_room(part: Parameter | Result) -> bool:
    return bool(part.dims) and part.dims[0].kind == "pack"


def called(batch: Batch) -> tuple[Any, ...]:
    """Have the rule that the kernel was wrapped with compute the batch."""
    kernel: Kernel = batch.kernel
    assert callable(kernel.batch)
    names = [part.name for part in batch.operator.schema.scalars]
    scalars = dict(zip(names, batch.scalars, strict=True))
    found = kernel.batch(batch.size, batch.is_batched, *batch.tensors, **scalars)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


_WAYS: dict[str, Callable[[Batch], tuple[Any, ...]]] = {
    "sequential": sequential,
    "broadcast": broadcast,
}


def batching_rule(current: Lookup, name: str) -> Callable[..., Any]:
    """Return the vmap rule of the functional operator of a name."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        batch = Batch(current(name), info.batch_size, in_dims, args, kwargs)
        way = batch.kernel.batch
        found = called(batch) if callable(way) else _WAYS[way](batch)
        if len(found) == 1:
            return found[0], 0
        return found, (0,) * len(found)

    return rule


def refuse_transforms(name: str) -> Callable[..., Any]:
    """Return what stands in the way of torch.func for an operator that writes."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise KernelError(
            f"{name}: a call that writes into its arguments has no meaning within torch.vmap, "
            "torch.func.grad and the like; leave out= away, or use a kernel that returns results"
        )

    return refuse
