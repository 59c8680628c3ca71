"""How torch differentiates an operator: by the kernel's `vjp=` and `jvp=`.

The rule stands at the dispatcher's autograd key, where eager autograd, torch.func and what
torch.compile traces all come by. A call of plain tensors runs at once; one that needs no derivative
goes on to the next key. Without `vjp=` the results still require a gradient, and backward raises:
gradients are never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch.autograd import forward_ad

from dlbridge._core import native
from dlbridge.errors import KernelError
from dlbridge.frameworks.torch import fake as torch_fake
from dlbridge.frameworks.torch.registry import add_rules, current, overload_name
from dlbridge.kernels.kernel import find

if TYPE_CHECKING:
    from dlbridge.frameworks.torch.operator import Operator
    from dlbridge.kernels.kernel import Kernel


class Call:
    """One call below autograd, and what its derivatives have to know of it."""

    __slots__ = ("kernel", "keys", "operator", "scalars")

    def __init__(self, operator: Operator, kernel: Kernel, keys: Any, scalars: list[Any]) -> None:
        self.operator = operator
        self.kernel = kernel
        self.keys = keys
        self.scalars = scalars

    def run(self, tensors: Sequence[Any]) -> Any:
        """Run the operator on these tensors."""
        args, kwargs = self.operator.pack(tensors, self.scalars)
        return go_on(self.operator, self.keys, args, kwargs)


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
        ctx.expected = [None if each is None else torch_fake.describe(each) for each in tensors]
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
        needed = ctx.needs_input_grad[1:]
        return None, *[grad if need else None for grad, need in zip(found, needed, strict=True)]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangents of the results, by the kernel's jvp."""
        call = ctx.call
        if ctx.jvp is None:
            raise no_rule(call.kernel, "jvp", "tangent")
        primals = list(ctx.saved_tensors)
        given = [
            torch.zeros_like(primal)
            if tangent is None and primal is not None and is_differentiable(primal)
            else tangent
            for primal, tangent in zip(primals, tangents[1:], strict=True)
        ]
        found = tuple(ctx.jvp(primals, call.scalars, given))
        return found if len(found) > 1 else found[0]


def _derivatives(kernel: Kernel) -> tuple[Any, Any]:
    if kernel.vjp is None and kernel.jvp is None:
        return None, None
    from dlbridge.kernels.gradients import gradients

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


def autograd_kernel(name: str) -> Callable[..., Any]:
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
    return bool(torch.is_grad_enabled() and _C._any_requires_grad(*args, **kwargs))


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


@add_rules
def _register(operator: Operator, library: Any, is_out: bool) -> None:
    if not is_out and not operator.schema.mutated:
        library.impl(
            overload_name(operator.schema.name, is_out),
            autograd_kernel(operator.name),
            "Autograd",
            with_keyset=True,
        )
