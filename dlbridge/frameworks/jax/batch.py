"""Batches: what `batch=` means under jax.vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dlbridge.errors import ArgumentError, DLBridgeError, KernelError

if TYPE_CHECKING:
    from dlbridge.frameworks.jax.program import Program

Call = Callable[..., tuple[Any, ...]]


def with_batch_rule(program: Program) -> Any:
    """Return the program's call with the kernel's own way to compute a batch."""
    if program.kernel.batch == "sequential" or not _has_outcome(program):
        return program.call
    rule = _broadcast if program.kernel.batch == "broadcast" else _call_rule

    call: Any = jax.custom_batching.custom_vmap(program.call)

    def batched(axis_size: int, is_batched: Sequence[bool], *operands: Any) -> Any:
        flags = [bool(each) for each in is_batched]
        outcome = tuple(rule(program, call, axis_size, flags, operands))
        return outcome, (True,) * len(outcome)

    call.def_vmap(batched)
    return call


def _has_outcome(program: Program) -> bool:
    schema = program.kernel.schema
    return bool(program.written) or (schema is not None and bool(schema.results))


def _one_by_one(call: Call, flags: Sequence[bool], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return the outcomes of the single calls, stacked along axis 0."""
    moving = tuple(each for each, flag in zip(operands, flags, strict=True) if flag)

    def one(slices: Sequence[Any]) -> tuple[Any, ...]:
        left = iter(slices)
        merged = [next(left) if flag else each for each, flag in zip(operands, flags, strict=True)]
        return call(*merged)

    outcome: tuple[Any, ...] = jax.lax.map(one, moving)
    return outcome


# ---- batch="broadcast" ---------------------------------------------------------------------------


def _broadcast(
    program: Program, call: Call, axis_size: int, flags: list[bool], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Call the kernel once, with the batch as one more dimension in its pack.

    Tensors that start with a pack get the dimension, if need be by repetition; the others may not
    be batched, and scalars neither: then, the single calls it is.
    """
    count = program.tensor_count
    leading = _leading(program)
    if any(flags[count:]) or any(f and not lead for f, lead in zip(flags, leading, strict=False)):
        return _one_by_one(call, flags, operands)
    wide = [
        jnp.broadcast_to(each, (axis_size, *each.shape)) if lead and not flag else each
        for each, flag, lead in zip(operands, flags, leading, strict=False)
    ]
    try:
        program.shapes(wide)
    except DLBridgeError:
        return _one_by_one(call, flags, operands)
    return call(*wide, *operands[count:])


def _leading(program: Program) -> list[bool]:
    """Return which of the tensors that are present start with a pack."""
    schema = program.kernel.schema
    if schema is None:
        return [False] * program.tensor_count
    return [
        bool(tensor.dims) and tensor.dims[0].kind == "pack"
        for tensor, present in zip(schema.tensors, program.plan.present, strict=True)
        if present
    ]


# ---- batch=function ------------------------------------------------------------------------------


def _call_rule(
    program: Program, call: Call, axis_size: int, flags: list[bool], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Call the author's rule; what it returns must be the single results, stacked."""
    count = program.tensor_count
    schema = program.kernel.schema
    assert schema is not None
    if any(flags[count:]):
        return _one_by_one(call, flags, operands)
    single = program.shapes(
        [
            jax.ShapeDtypeStruct(each.shape[flag:], each.dtype)
            for each, flag in zip(operands[:count], flags, strict=False)
        ]
    )
    tensors = program.spread(operands[:count])
    marks = [bool(each) for each in program.spread(flags[:count])]
    values = program.scalars(operands)
    named = {part.name: value for part, value in zip(schema.scalars, values, strict=True)}
    batch: Any = program.kernel.batch
    made = batch(axis_size, tuple(marks), *tensors, **named)
    outcome = tuple(made) if isinstance(made, tuple | list) else (made,)
    _check(program, outcome, [(axis_size, *each.shape) for each in single], single)
    return outcome


def _check(program: Program, made: Sequence[Any], shapes: Sequence[Any], single: Any) -> None:
    name = program.kernel.name
    if len(made) != len(shapes):
        raise KernelError(f"{name}: batch= returned {len(made)} results instead of {len(shapes)}")
    for index, (each, shape, like) in enumerate(zip(made, shapes, single, strict=True)):
        if tuple(each.shape) != tuple(shape) or each.dtype != like.dtype:
            raise ArgumentError(
                f"{name}: batch= returned {each.dtype}{list(each.shape)} as result {index}, "
                f"expected {like.dtype}{list(shape)}"
            )
