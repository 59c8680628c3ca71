"""The collectives as an operator of torch: differentiable, and ordered in compiled programs."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.effects import _EffectType

from dlbridge.mpi.linear import Parameters, result_shape, run, transpose


def is_needed(x: Any, _: bool) -> bool:
    """Return whether a value is a tensor of torch that is traced or differentiated."""
    if not isinstance(x, torch.Tensor):
        return False
    is_compiling: bool = torch.compiler.is_compiling()
    return is_compiling or (x.requires_grad and torch.is_grad_enabled())


def call(x: Any, what: Parameters) -> Any:
    """Call the operator."""
    return _collective(x, what.name, what.op, what.root, what.comm)


@torch.library.custom_op("dlbridge_mpi::collective", mutates_args=())  # type: ignore[untyped-decorator]
def _collective(x: torch.Tensor, name: str, op: str, root: int, comm: int) -> torch.Tensor:
    value = x.detach()
    result: torch.Tensor = run(value, Parameters(name, op, root, comm))
    return result.clone() if result is value else result  # a bcast returns the root's own


@_collective.register_fake  # type: ignore[untyped-decorator]
def _infer(x: torch.Tensor, name: str, op: str, root: int, comm: int) -> torch.Tensor:
    return x.new_empty(result_shape(tuple(x.shape), Parameters(name, op, root, comm)))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 - names of torch
    ctx.what = inputs[1:]


def _pull_back(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return call(gradient, transpose(Parameters(*ctx.what))), None, None, None, None


_collective.register_autograd(_pull_back, setup_context=_keep)
_collective.register_effect(_EffectType.ORDERED)
