"""Python functions that nodes call, known by a token, which a GraphDef can hold.

A function that a graph was given is known as long as that graph lives; one that was registered
under a token of its own choice, as long as the process.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any
from weakref import WeakValueDictionary

from dlbridge.errors import ArgumentError
from dlbridge.execution.errors import NotFoundError
from dlbridge.graph.ops.kernels import Function


class Held:
    """A function that is known by `token` while this object lives."""

    __slots__ = ("__weakref__", "function", "token")

    def __init__(self, function: Function, token: str) -> None:
        self.function = function
        self.token = token


_HELD: WeakValueDictionary[str, Held] = WeakValueDictionary()
_REGISTERED: dict[str, Held] = {}
_lock = threading.Lock()
_numbers = itertools.count()


def hold(function: Function) -> Held:
    """Make a function known by a new token; a registered one keeps its own."""
    with _lock:
        for held in _REGISTERED.values():
            if held.function is function:
                return held
        held = Held(function, f"pyfunc_{next(_numbers)}")
        _HELD[held.token] = held
        return held


def register(function: Function, token: str) -> None:
    """Make a function known by `token` from now on.

    Raises:
        ArgumentError: another one has this token.
    """
    with _lock:
        known = _REGISTERED.get(token) or _HELD.get(token)
        if known is not None and known.function is not function:
            raise ArgumentError(f"register_function: {known.function!r} has the token {token!r}")
        _REGISTERED[token] = Held(function, token)


def find(token: str, node: Any = None) -> Held:
    """Return the function known by `token`.

    Raises:
        NotFoundError: nothing is.
    """
    held = _REGISTERED.get(token) or _HELD.get(token)
    if held is None:
        raise NotFoundError(
            f"callback {token!r} is not found: the graph that it was made for is gone, or it was "
            "made in another process; register_function makes one known for good",
            node,
        )
    return held
