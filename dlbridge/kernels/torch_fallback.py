"""The body of an operator in Python, for a libtorch without what the body in C needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dlbridge.kernels import torch_fake
from dlbridge.kernels.binding import Binding, binding
from dlbridge.kernels.schema_parts import Arguments
from dlbridge.kernels.torch_operator import current


def body(name: str, is_out: bool) -> Callable[..., Any]:
    """Return a function of torch tensors that runs the kernel of this name on their memory."""

    def run(*args: Any, **kwargs: Any) -> Any:
        operator, kernel = current(name)
        tensors, scalars, outs = operator.unpack(is_out, args, kwargs)
        written = [*(tensors[place] for place in operator.schema.mutated), *outs]
        if written:
            torch_fake.refuse_gradients(operator.schema, [*tensors, *outs])
        plain = [None if each is None else each.detach() for each in tensors]
        buffers = [each.detach() for each in outs]
        arguments = Arguments(plain, scalars, buffers or None)
        result = Binding.call(binding("torch"), kernel, arguments)  # without the dispatcher
        for each in written:
            _bump(each)
        return None if outs else result

    return run


def _bump(tensor: Any) -> None:
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
