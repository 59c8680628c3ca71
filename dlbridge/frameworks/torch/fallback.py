"""The body of an operator in Python, for a libtorch without what the body in C needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dlbridge.frameworks.torch import fake as torch_fake
from dlbridge.frameworks.torch.registry import current
from dlbridge.kernels.binding import Binding, binding
from dlbridge.kernels.refusals import QUALITIES
from dlbridge.kernels.schema.errors import unfit
from dlbridge.kernels.schema.parts import Arguments

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema


def body(name: str, is_out: bool) -> Callable[..., Any]:
    """Return a function of torch tensors that runs the kernel of this name on their memory."""

    def run(*args: Any, **kwargs: Any) -> Any:
        operator, kernel = current(name)
        tensors, scalars, outs = operator.unpack(is_out, args, kwargs)
        if outs or operator.schema.mutated:
            torch_fake.refuse_gradients(operator.schema, [*tensors, *outs])
            _refuse_inference(operator.schema, tensors, outs)
        plain = [None if each is None else each.detach() for each in tensors]
        buffers = [each.detach() for each in outs]  # which count versions together with theirs
        arguments = Arguments(plain, scalars, buffers or None)
        torch_binding = binding("torch")
        with torch_binding.working(next((each for each in plain if each is not None), None)):
            result = Binding.call(torch_binding, kernel, arguments)  # without the dispatcher
        return None if outs else result

    return run


def _refuse_inference(schema: Schema, tensors: list[Any], outs: list[Any]) -> None:
    """Refuse to write into tensors of inference mode outside of it, as torch does."""
    if torch.is_inference_mode_enabled():
        return
    written = [(place, tensors[place]) for place in schema.mutated]
    written += enumerate(outs, len(tensors))
    for place, tensor in written:
        if tensor is not None and tensor.is_inference():
            wanted, found, hint = QUALITIES["readonly"]
            got = torch_fake.describe(tensor)
            raise unfit(schema, place, "readonly", (wanted, found), got, hint)
