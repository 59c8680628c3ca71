"""PyTorch: eager calls that C declines, and everything that goes through torch's dispatcher."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import FrameworkMissingError
from dlbridge.exchange import adapter
from dlbridge.frameworks.torch import native as native_calls
from dlbridge.frameworks.torch.adapter import LAZY
from dlbridge.frameworks.torch.operators import Operator, offer, operator, registered
from dlbridge.frameworks.torch.transforms import describe, written
from dlbridge.kernels.binding import Binding
from dlbridge.kernels.kernel import Kernel, all_published, find, is_native_to
from dlbridge.kernels.schema import Arguments, refuse_scalar, unfit

_OLDEST = "2.6"  # with all that operators need: register_vmap, substitute_in_graph
if not hasattr(torch.compiler, "substitute_in_graph"):
    raise FrameworkMissingError(
        f"kernels: torch {torch.__version__} is too old, kernels need {_OLDEST}; convert its "
        "tensors, as dlbridge.to_numpy(x) does"
    )


class TorchBinding(Binding):
    """Kernels as operators of torch."""

    name = "torch"

    def __init__(self) -> None:
        for kernel in all_published():
            offer(kernel)

    def function(self, kernel: Kernel) -> Callable[..., Any]:
        """Return the function of torch tensors; `torch.ops` has the operator from here on."""
        made = super().function(kernel)
        if kernel.schema is not None:
            operator(kernel)
            substitute(made, kernel)
        return made

    def serve(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the kernel; torch's own functions are called as they are."""
        if is_native_to(kernel, self.name):
            return native_calls.call(kernel, arguments)
        return super().serve(kernel, arguments)

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
        is_recording = torch.is_grad_enabled()
        return super().take(value if is_recording else value.detach(), written)

    def wrote(self, value: Any) -> None:
        """Count the version, by which autograd notices."""
        if not value.is_inference():
            torch.autograd.graph.increment_version(value)

    def operator(self, kernel: Kernel) -> Operator:
        """Return the kernel's operators, registered if need be."""
        return operator(kernel)

    def traceable(self, kernel: Kernel) -> Callable[..., Any]:
        """Return a Python function that calls operators, for torch.compile."""
        return traceable(kernel)

    def published(self, kernel: Kernel) -> None:
        """Redefine the operator of a name where its kernel was replaced."""
        offer(kernel)
        if registered(kernel.name):
            operator(kernel)


def _refuse_tensors(made: Operator, arguments: Arguments) -> None:
    """Refuse tensors for scalars: torch would read their value and lose their gradient."""
    tensor = torch.Tensor
    for parameter, value in zip(made.schema.scalars, arguments.scalars, strict=True):
        if isinstance(value, tensor):
            raise refuse_scalar(made.schema, parameter, value)


def _refuse_lazy(made: Operator, arguments: Arguments) -> None:
    """Refuse to write where the memory holds other values: torch cannot copy them back."""
    schema = made.schema
    for place, tensor in written(schema, arguments.tensors, arguments.out or ()):
        for reason, is_lazy, resolve in LAZY:
            if is_lazy(tensor):
                quality = "resolved", f"lazy ({reason})"
                hint = f"write into x.{resolve}()"
                raise unfit(schema, place, reason, quality, describe(tensor), hint)


# ---- torch.compile -------------------------------------------------------------------------------
#
# dynamo traces Python, not C. `Kernel.__call__` asks for `traceable`; the builtin functions that
# `kernel.torch` are have a substitute registered with dynamo, which takes seconds to import: so it
# is registered when dynamo is imported, not before.

_DYNAMO = "torch._dynamo"
# By address, as dynamo knows functions, and kept for good. Threads may ask for one at once: who
# gets its own entry back from `setdefault` came first.
_Entry = tuple[Callable[..., Any], Callable[..., Any]]
_SUBSTITUTES: dict[int, _Entry] = {}
_REGISTERED: dict[int, object] = {}


def traceable(kernel: Kernel) -> Callable[..., Any]:
    """Return a function that does in Python, by operators, what a call of `kernel` does.

    A kernel that is a function of torch tensors is traced itself, and so are its gradients.
    """
    if is_native_to(kernel, "torch"):
        return native_calls.traceable(kernel)
    made = operator(kernel)
    schema, default, out_overload = made.schema, made.default, made.out

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = schema.arrange(args, kwargs, traced=True)
        values, named = made.pack(arguments.tensors, arguments.scalars, arguments.out or ())
        if arguments.out is None:
            return default(*values, **named)
        out_overload(*values, **named)
        return tuple(arguments.out) if len(arguments.out) > 1 else arguments.out[0]

    return call


def substitute(function: Callable[..., Any], kernel: Kernel) -> None:
    """Have dynamo trace the Python function in place of a builtin one, now or when it is loaded."""
    prepare, name = kernel.prepare, kernel.name

    def call(*args: Any, **kwargs: Any) -> Any:
        prepare("traced")
        return find(name).traced(*args, **kwargs)

    entry = function, call
    if _SUBSTITUTES.setdefault(id(function), entry) is not entry:
        return
    if _DYNAMO in sys.modules:
        _register(*entry)
    elif _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)


def _register(function: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    claim = object()
    if _REGISTERED.setdefault(id(function), claim) is claim:
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(substitute)


class _Watch(MetaPathFinder):
    """Sees dynamo being imported, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader)
        return spec


_WATCH = _Watch()


def _run_after(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for function, substitute in list(_SUBSTITUTES.values()):
            _register(function, substitute)

    loader.exec_module = exec_module


BINDING = TorchBinding()
