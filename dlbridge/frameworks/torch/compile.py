"""What torch.compile sees of a kernel: a Python function that calls operators.

dynamo traces Python, not C. `Kernel.__call__` asks for `traceable`; the builtin functions that
`kernel.torch` are have a substitute registered with dynamo, which takes seconds to import: so it is
told when it is imported, not before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from dlbridge.frameworks.torch.registry import operator
from dlbridge.kernels.kernel import find
from dlbridge.kernels.kinds import python_direct

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

_DYNAMO = "torch._dynamo"
# By address, as dynamo knows functions, and kept for good. Threads may ask for one at once: who
# gets its own entry back from `setdefault` came first.
_Entry = tuple[Callable[..., Any], Callable[..., Any]]
_SUBSTITUTES: dict[int, _Entry] = {}
_TOLD: dict[int, object] = {}


def traceable(kernel: Kernel) -> Callable[..., Any]:
    """Return a function that does in Python, by operators, what a call of `kernel` does.

    A kernel that is a function of torch tensors is traced itself, and so are its gradients.
    """
    if python_direct.is_own(kernel, "torch"):
        return python_direct.traceable(kernel)
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
        _tell(*entry)
    elif _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)


def _tell(function: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    claim = object()
    if _TOLD.setdefault(id(function), claim) is claim:
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
            _tell(function, substitute)

    loader.exec_module = exec_module
