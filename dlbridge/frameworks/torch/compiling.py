"""Exchanges in code that torch.compile traces.

Dynamo traces no C. So it has a substitute in Python for each call that exchanges, registered when
dynamo is imported, which takes seconds:

- `to_numpy(x)` of a plain torch.Tensor, `to_torch(x)` of a torch.Tensor, and `to_torch(x)` of a
  NumPy array that the function has computed stay in the graph, as `x.numpy()`, `x` and
  `torch.from_numpy(x)`. Dynamo does not know which arrays that come from outside are read-only:
  those need `readonly="share"`;
- any other exchange needs the memory, which a graph does not have: it breaks the graph, and is made
  between its parts. Under `fullgraph=True` the error of torch has our reason in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import call as call_object
from typing import Any

import numpy
import torch

from dlbridge import registry
from dlbridge._core import native
from dlbridge.exchange import exchange, trees
from dlbridge.frameworks import conversions
from dlbridge.signals import not_from_handler

# Insides of dynamo, which `register` finds; without them, all arrays need readonly="share".
_comptime: Any = None  # calls a function while dynamo traces
_FromOutside: Any = None  # where arrays come from that are given to a compiled function

_TELLS_REASONS = "reason" in inspect.signature(torch.compiler.disable).parameters  # since 2.7

# Whose values are the same in NumPy and torch.
_DTYPES = frozenset(
    {torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
)


def _stays(to: object, x: Any, policies: dict[str, Any]) -> bool:
    """Return whether an exchange is one that a graph can have."""
    if to == "numpy":
        return (
            not policies
            and type(x) is torch.Tensor
            and x.device.type == "cpu"
            and x.layout is torch.strided
            and x.dtype in _DTYPES
            and not x.requires_grad
        )
    if to != "torch":
        return False
    if type(x) is numpy.ndarray:
        return policies == {"readonly": "share"} or (_comptime is not None and not policies)
    return not policies and type(x) is torch.Tensor


def _traced(to: object, x: Any, policies: dict[str, Any]) -> Any:
    """Return what `_stays` allows."""
    if to == "numpy":
        return x.numpy()
    if type(x) is torch.Tensor:
        return x
    if not policies:
        _comptime(_end_graph_at_arrays_from_outside)
    return torch.from_numpy(x)


def _end_graph_at_arrays_from_outside(context: Any) -> None:
    """Break the graph that dynamo is making unless `x` of `_traced` is certain to be writable."""
    try:
        writable = _is_made_in_graph(context.get_local("x").as_proxy().node)
    except not_from_handler(AttributeError):  # the insides of torch are others than those of 2.13
        writable = False
    if not writable:
        context.graph_break(f"reason: {_reason('to_torch')}")


def end_graph(text: str) -> None:  # noqa: ARG001  (read by `_end_graph_for_text`)
    """Break the graph, in code that dynamo traces, with `text` as the reason.

    Under `fullgraph=True` torch's error shows the text. Dynamo of torch 2.6 would not show that of
    an exception.
    """
    if _comptime is not None:
        _comptime(_end_graph_for_text)


def _end_graph_for_text(context: Any) -> None:
    context.graph_break(context.get_local("text").as_python_constant())


# Of NumPy's functions that dynamo traces, those whose results are read-only.
_PROTECTING = frozenset({"broadcast_to", "broadcast_arrays", "diagonal"})


def _is_made_in_graph(node: torch.fx.Node) -> bool:
    """Return whether all arrays of which a node is computed, or a view, come from tensors."""
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes += node.all_input_nodes
        if node.op == "placeholder":
            source = node.meta["grapharg"].source if "grapharg" in node.meta else None
            made = source is not None and not isinstance(source, _FromOutside)
        else:
            name = getattr(node.target, "__name__", "").removeprefix("wrapped_")
            made = node.op in ("call_function", "call_method") and name not in _PROTECTING
        if not made:
            return False
    return True


def _reason(name: str) -> str:
    stays = ""
    if name in ("to_torch", "convert"):
        stays = (
            'pass readonly="share" with a NumPy array from outside of the compiled function that '
            "nobody protects from writes, "
        )
    return (
        f"{name}: torch.compile has no memory to exchange while it traces, so the graph ends here; "
        f"{stays}make the exchange outside of the compiled function, leave out fullgraph=True, or "
        "call a kernel wrapped with dlbridge.wrap, which is an operator"
    )


def _breaking(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` between two graphs."""

    def exchange_outside_of_graphs(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # Texts of torch show it.
    exchange_outside_of_graphs.__name__ = exchange_outside_of_graphs.__qualname__ = name
    told = {"reason": _reason(name)} if _TELLS_REASONS else {}
    made: Callable[..., Any] = torch.compiler.disable(exchange_outside_of_graphs, **told)
    return made


def _substitute_converters() -> None:
    # Of all converters at once: what dynamo looks up is the method of their type.
    breaking = {
        name: _breaking(name, call_object)
        for name in (f"to_{row.name}" for row in registry.rows())
        if hasattr(conversions, name)
    }
    other = _breaking("convert", call_object)

    def call(self: native.Converter[Any], *args: Any, **policies: Any) -> Any:
        name = self.__name__
        if len(args) == 1 and _stays(name[3:], args[0], policies):
            return _traced(name[3:], args[0], policies)
        return breaking.get(name, other)(self, *args, **policies)

    _register(native.Converter.__dict__["__call__"], call)


def _substitute_convert() -> None:
    breaking = _breaking("convert", native.convert)

    def convert(*args: Any, **policies: Any) -> Any:
        if len(args) == 2 and _stays(args[1], args[0], policies):
            return _traced(args[1], args[0], policies)
        return breaking(*args, **policies)

    _register(native.convert, convert)


def _substitute_breaking(name: str, function: Callable[..., Any]) -> None:
    breaking = _breaking(name, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return breaking(*args, **kwargs)

    _register(function, call)


def _register(function: Any, substitute: Callable[..., Any]) -> None:
    torch.compiler.substitute_in_graph(function, skip_signature_check=True)(substitute)


# Python functions that exchange, and those that C calls where it declines.
_PUBLIC: dict[str, Callable[..., Any]] = {
    "to_dlpack": exchange.to_dlpack,
    "as_tensor": exchange.as_tensor,
    "asarray": exchange.asarray,
    "explain": exchange.explain,
    "convert_tree": trees.convert_tree,
}
_SLOW = (exchange.convert, exchange.from_dlpack)


def skip(function: Callable[..., Any]) -> None:
    """Have dynamo look into no call of a function, nor into those that it makes."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # since 2.7
        skip = frames._FrameAction.SKIP
        code = function.__code__
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


def _find_insides() -> None:
    global _comptime, _FromOutside
    try:
        from torch._dynamo.comptime import comptime
        from torch._dynamo.source import NumpyTensorSource
    except not_from_handler(ImportError):
        return
    _comptime, _FromOutside = comptime, NumpyTensorSource


def register() -> None:
    """Tell dynamo of the calls; torch before 2.6 traces none of them."""
    if not hasattr(torch.compiler, "substitute_in_graph"):
        return
    _find_insides()
    _substitute_converters()
    _substitute_convert()
    _substitute_breaking("from_dlpack", native.from_dlpack)
    for name, function in _PUBLIC.items():
        _substitute_breaking(name, function)
        skip(function)
    for function in _SLOW:
        skip(function)
