"""PyTorch: eager calls that C declines, and everything that goes through torch's dispatcher."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from dlbridge import cuda
from dlbridge._core import native
from dlbridge.exchange import adapter
from dlbridge.frameworks.torch import batch as torch_batch
from dlbridge.frameworks.torch import compile as torch_compile
from dlbridge.frameworks.torch import fake as torch_fake
from dlbridge.frameworks.torch import gradients as torch_gradients
from dlbridge.frameworks.torch import namespace as torch_namespace
from dlbridge.frameworks.torch.operator import Operator
from dlbridge.frameworks.torch.registry import operator, registered
from dlbridge.kernels.binding import Binding
from dlbridge.kernels.kernel import all_published
from dlbridge.kernels.schema.call import refuse_scalar
from dlbridge.kernels.schema.errors import unfit

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema.parts import Arguments

# In the order in which an operator gets them.
RULES = (torch_fake, torch_gradients, torch_batch)


class TorchBinding(Binding):
    """Kernels as operators of torch."""

    name = "torch"

    def __init__(self) -> None:
        for kernel in all_published():
            torch_namespace.offer(kernel)

    def function(self, kernel: Kernel) -> Callable[..., Any]:
        """Return the function of torch tensors; `torch.ops` has the operator from here on."""
        made = super().function(kernel)
        if kernel.schema is not None:
            operator(kernel)
            torch_compile.substitute(made, kernel)
        return made

    def call(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the operator, which knows gradients, modes, transforms and subclasses."""
        made = operator(kernel)
        _refuse_tensors(made, arguments)
        _refuse_lazy(made, arguments)
        args, kwargs = made.pack(arguments.tensors, arguments.scalars, arguments.out or ())
        if arguments.out is None:
            return native.torch_op_call(made.default, *args, **kwargs)
        native.torch_op_call(made.out, *args, **kwargs)
        return tuple(arguments.out) if len(arguments.out) > 1 else arguments.out[0]

    def working(self, like: Any) -> AbstractContextManager[Any]:
        """Return a block on torch's current stream of the device of `like`, unless that is fake."""
        torch: Any = sys.modules["torch"]
        if like is None or torch.version.hip is not None or not torch.cuda.is_initialized():
            return nullcontext()
        with torch._C.DisableTorchFunction():  # neither modes nor subclasses are asked
            device = like.device
        if device.type != "cuda":
            return nullcontext()
        index = device.index
        return cuda.stream(adapter.adapter("torch").stream(index), index)

    def take(self, value: Any, written: bool) -> native.TensorBase:
        """Take a tensor for a kernel without a schema; gradients count where they are recorded."""
        is_recording = sys.modules["torch"].is_grad_enabled()
        return super().take(value if is_recording else value.detach(), written)

    def wrote(self, value: Any) -> None:
        """Count the version, by which autograd notices."""
        if not value.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(value)

    def operator(self, kernel: Kernel) -> Operator:
        """Return the kernel's operators, registered if need be."""
        return operator(kernel)

    def traceable(self, kernel: Kernel) -> Callable[..., Any]:
        """Return a Python function that calls operators, for torch.compile."""
        return torch_compile.traceable(kernel)

    def published(self, kernel: Kernel) -> None:
        """Define the operator of a name anew where its kernel was replaced."""
        torch_namespace.offer(kernel)
        if registered(kernel.name):
            operator(kernel)


def _refuse_tensors(made: Operator, arguments: Arguments) -> None:
    """Refuse tensors for scalars: torch would read their value and lose their gradient."""
    tensor = sys.modules["torch"].Tensor
    for parameter, value in zip(made.schema.scalars, arguments.scalars, strict=True):
        if isinstance(value, tensor):
            raise refuse_scalar(made.schema, parameter, value)


_LAZY: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("conjugate", lambda tensor: tensor.is_conj(), "resolve_conj"),
    ("negative_bit", lambda tensor: tensor.is_neg(), "resolve_neg"),
)


def _refuse_lazy(made: Operator, arguments: Arguments) -> None:
    """Refuse to write where the memory holds other values: torch cannot copy them back."""
    schema = made.schema
    written = [(place, arguments.tensors[place]) for place in schema.mutated]
    written += enumerate(arguments.out or (), len(schema.tensors))
    for place, tensor in written:
        for reason, is_lazy, resolve in _LAZY:
            if tensor is not None and is_lazy(tensor):
                quality = "resolved", f"lazy ({reason})"
                hint = f"write into x.{resolve}()"
                raise unfit(schema, place, reason, quality, torch_fake.describe(tensor), hint)


BINDING = TorchBinding()
