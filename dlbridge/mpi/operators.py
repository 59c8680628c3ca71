"""Which calls are not made now, but become part of what a framework traces or differentiates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from dlbridge import registry
from dlbridge.errors import ArgumentError
from dlbridge.mpi.linear import Parameters, number_of

_TRACING = ("torch", "jax")
_DYNAMO = "torch._dynamo"
_MODULES: dict[str, Any] = {}
_ADDED: list[Any] = []  # modules of what builds graphs


def add(operators: Any) -> None:
    """Have calls that a module's `is_needed` recognises become what its `call` makes of them."""
    _ADDED.append(operators)


def _load(name: str) -> bool:
    """Import a framework's operators; return whether the framework was imported before."""
    if name not in _MODULES and name in sys.modules:
        _MODULES[name] = registry.load(import_module, f"dlbridge.mpi.{name}_operators")
    return name in _MODULES


# torch.compile runs such a function instead of tracing it: it takes text, and needs no guard.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _decline(*_: Any) -> bool:
    return False


def _find_none(*_: Any) -> Callable[..., bool]:
    return _decline


def substitute(calls: Sequence[Any], find: Any) -> None:
    """Have dynamo, which traces no C, trace what declines in place of these functions.

    The same goes for those that `find` returns.

    Done when dynamo is imported: that takes seconds.
    """

    def register() -> None:
        compiler = sys.modules["torch"].compiler
        for each in calls:
            compiler.substitute_in_graph(each, skip_signature_check=True)(_decline)
        compiler.substitute_in_graph(find, skip_signature_check=True)(_find_none)

    if registry.is_loaded(_DYNAMO):
        register()
    else:
        registry.after_import(_DYNAMO, register)


def find(x: Any, out: Any, timeout: Any) -> Any:
    """Return the module of operators that must serve a call with `x`, None for a call made now."""
    is_plain = out is not None or timeout is not None  # operators have neither
    for name in _TRACING:
        if _load(name) and _MODULES[name].is_needed(x, is_plain):
            return _MODULES[name]
    for each in _ADDED:
        if each.is_needed(x, is_plain):
            return each
    return None


def call(
    operators: Any, name: str, x: Any, op: str, root: int, out: Any, comm: Any, timeout: Any
) -> Any:
    """Call an operator."""
    for argument, given in (("out", out), ("timeout", timeout)):
        if given is not None:
            raise ArgumentError(
                f"{name}: {argument}= is of calls that are neither traced nor differentiated, nor "
                "part of a graph; leave it out and use the result, or make the call within "
                "torch.no_grad() where that is what asks for a gradient"
            )
    return operators.call(x, Parameters(name, op, root, 0 if comm is None else number_of(comm)))
