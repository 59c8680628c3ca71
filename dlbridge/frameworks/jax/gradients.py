"""Gradients: what `vjp=` and `jvp=` mean under jax.grad, jax.jvp and their kin.

A kernel without either raises as soon as a derivative would pass through it: never a silent zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dlbridge._core import native
from dlbridge.errors import KernelError
from dlbridge.frameworks.jax.linear import Linear
from dlbridge.kernels.gradients import gradients

if TYPE_CHECKING:
    from dlbridge.frameworks.jax.program import Program
    from dlbridge.kernels.gradients.gradients import Jvp, Vjp
    from dlbridge.kernels.schema.schema import Described

Call = Callable[..., tuple[Any, ...]]


def with_gradients(program: Program, call: Call) -> Any:
    """Return `call` with the kernel's own derivatives, or with a clear error in their place."""
    vjp = gradients.make_vjp(program.kernel)
    jvp = gradients.make_jvp(program.kernel)
    if jvp is not None:
        return _with_jvp(program, call, jvp, vjp)
    if vjp is not None:
        return _with_vjp(program, call, vjp)
    return _with_refusal(program, call)


def _is_differentiable(array: Any) -> bool:
    """Tell whether JAX gives such values a tangent of their own dtype."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _is_zero(tangent: Any) -> bool:
    symbolic = isinstance(tangent, jax.custom_derivatives.SymbolicZero)
    return symbolic or tangent.dtype == jax.dtypes.float0


def _instantiate(tangent: Any) -> Any:
    """Return a tangent or cotangent as an array, or None where there is none."""
    if tangent.dtype == jax.dtypes.float0:
        return None
    if _is_zero(tangent):
        return jnp.zeros(tangent.shape, tangent.dtype)
    return jnp.asarray(tangent)  # JAX passes on NumPy's arrays where it was given them


def _zero_tangent(array: Any) -> Any:
    if _is_differentiable(array):
        return jnp.zeros(array.shape, array.dtype)
    return np.zeros(array.shape, jax.dtypes.float0)


# ---- neither -------------------------------------------------------------------------------------


def _with_refusal(program: Program, call: Call) -> Any:
    made: Any = jax.custom_jvp(call)

    def refuse(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        outcome = call(*primals)
        if not all(map(_is_zero, tangents)) and any(map(_is_differentiable, outcome)):
            raise _missing(program)
        return outcome, tuple(map(_zero_tangent, outcome))

    made.defjvp(refuse, symbolic_zeros=True)
    return made


def _missing(program: Program) -> KernelError:
    return KernelError(
        f"{program.kernel.name}: a gradient would pass through this kernel, and it has none; wrap "
        "it with vjp=, or stop the gradient with jax.lax.stop_gradient"
    )


# ---- vjp= ----------------------------------------------------------------------------------------


@jax.tree_util.register_pytree_node_class
class _Kept:
    """What the backward call needs of the forward one; of the tensors, what they were."""

    def __init__(self, arrays: Any, operands: tuple[Described, ...]) -> None:
        self.arrays = arrays
        self.operands = operands

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.arrays,), self.operands

    @classmethod
    def tree_unflatten(cls, operands: Any, children: Any) -> _Kept:
        return cls(children[0], operands)


def _with_vjp(program: Program, call: Call, vjp: Vjp) -> Any:
    """Differentiate backwards with `vjp`.

    Where scalars are operands, JAX is asked which of them are differentiated: none may be.
    """
    made: Any = jax.custom_vjp(call)
    watched = bool(program.plan.traced)

    def forward(*operands: Any) -> Any:
        if watched:
            _refuse_scalars(program, [each.perturbed for each in operands])
            operands = tuple(each.value for each in operands)
        outcome = made(*operands)  # not `call`: a second derivative passes here
        return outcome, _keep(program, vjp, operands, outcome)

    def backward(kept: _Kept, cotangents: Sequence[Any]) -> Any:
        tensors, scalars, outcome = kept.arrays
        found = vjp(
            tensors,
            program.scalars([*[None] * program.tensor_count, *scalars]),
            outcome,
            list(map(_instantiate, cotangents)),
            program.spread(kept.operands),
        )
        return (*_present(program, found), *[None] * len(scalars))

    made.defvjp(forward, backward, symbolic_zeros=watched)
    return made


def _keep(program: Program, vjp: Vjp, operands: Sequence[Any], outcome: Sequence[Any]) -> _Kept:
    tensors = program.spread(operands)
    arrays = (
        [each if place in vjp.saved.primals else None for place, each in enumerate(tensors)],
        list(operands[program.tensor_count :]),
        [each if place in vjp.saved.results else None for place, each in enumerate(outcome)],
    )
    return _Kept(arrays, tuple(map(program.describe, operands[: program.tensor_count])))


def _present(program: Program, values: Sequence[Any]) -> list[Any]:
    """Leave out what belongs to tensors that were left out."""
    return [each for each, given in zip(values, program.plan.present, strict=True) if given]


def _refuse_scalars(program: Program, moving: Sequence[bool]) -> None:
    schema = program.kernel.schema
    for place, index in enumerate(program.plan.traced, program.tensor_count):
        if moving[place]:
            assert schema is not None
            raise KernelError(
                f"{program.kernel.name}: argument {schema.scalars[index].name!r}: no gradient "
                "passes to a scalar; make it a tensor of the schema, or stop the gradient with "
                "jax.lax.stop_gradient"
            )


# ---- jvp= ----------------------------------------------------------------------------------------


def _with_jvp(program: Program, call: Call, jvp: Jvp, vjp: Vjp | None) -> Any:
    """Differentiate forwards with `jvp`; backwards with `vjp`, or what JAX makes of `jvp`."""
    made: Any = jax.custom_jvp(call)
    transposed = vjp is None and not isinstance(jvp.rule.function, native.KernelBase)

    def rule(operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
        _refuse_scalars(program, [not _is_zero(each) for each in tangents])
        outcome = made(*operands)  # not `call`: a second derivative passes here
        flags = [not _is_zero(each) for each in tangents[: program.tensor_count]]
        moving = tuple(each for each, flag in zip(tangents, flags, strict=False) if flag)
        rules = _LinearRules(program, jvp, vjp, flags, len(operands))
        kept = *operands, *outcome
        if transposed:
            found = iter(rules.forward(kept, moving))
        else:
            found = iter(Linear(rules.forward, rules.backward)(kept, moving))
        return outcome, tuple(
            next(found) if _is_differentiable(each) else _zero_tangent(each) for each in outcome
        )

    made.defjvp(rule, symbolic_zeros=True)
    return made


class _LinearRules:
    """From tangents to tangents, and from cotangents to cotangents, of what has such.

    `flags` says which tensors have a tangent that is not known to be zero: only they take part,
    since whoever transposes must not meet a constant among them.
    """

    def __init__(
        self, program: Program, jvp: Jvp, vjp: Vjp | None, flags: Sequence[bool], count: int
    ) -> None:
        self.program = program
        self.jvp = jvp
        self.vjp = vjp
        self.flags = flags
        self.count = count  # operands; behind them come the results

    def forward(self, kept: Any, moving: Sequence[Any]) -> tuple[Any, ...]:
        operands, outcome = kept[: self.count], kept[self.count :]
        tensors = operands[: self.program.tensor_count]
        left = iter(moving)
        tangents = [
            next(left) if flag else _instantiate(_zero_tangent(each))
            for each, flag in zip(tensors, self.flags, strict=True)
        ]
        spread = self.program.spread
        scalars = self.program.scalars(operands)
        found = self.jvp(spread(tensors), scalars, spread(tangents))
        return tuple(
            jnp.zeros(like.shape, like.dtype) if each is None else each
            for each, like in zip(found, outcome, strict=True)
            if _is_differentiable(like)
        )

    def backward(self, kept: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        operands, outcome = kept[: self.count], kept[self.count :]
        if self.vjp is None:
            raise _missing(self.program)
        left = iter(cotangents)
        wanted = [next(left) if _is_differentiable(each) else None for each in outcome]
        tensors = operands[: self.program.tensor_count]
        scalars = self.program.scalars(operands)
        found = self.vjp(self.program.spread(tensors), scalars, list(outcome), wanted)
        rows = zip(_present(self.program, found), tensors, self.flags, strict=True)
        return tuple(
            jnp.zeros(like.shape, like.dtype) if each is None else each
            for each, like, flag in rows
            if flag
        )
