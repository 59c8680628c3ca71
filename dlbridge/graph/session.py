"""Session: runs a graph."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from dlbridge import adapter, exchange
from dlbridge.execution import plan
from dlbridge.graph.defaults import Stack
from dlbridge.graph.graph import Graph, get_default_graph
from dlbridge.graph.operation import Operation
from dlbridge.graph.tensor import Tensor


class Session:
    """Runs operations of one graph and keeps the state of its variables."""

    def __init__(self, graph: Graph | None = None, framework: str = "numpy") -> None:
        self.graph = graph or get_default_graph()
        self.framework = framework
        self._resources: dict[str, Any] = {}

    def run(self, fetches: Any, feed_dict: dict[Any, Any] | None = None, as_: str = "numpy") -> Any:
        """Return the values of `fetches`."""
        is_list = isinstance(fetches, list | tuple)
        wanted = list(fetches) if is_list else [fetches]
        feeds = {
            key: np.asarray(value, key.dtype.numpy) for key, value in (feed_dict or {}).items()
        }
        tensors = [each for each in wanted if isinstance(each, Tensor)]
        targets = [each for each in wanted if isinstance(each, Operation)]
        values = iter(plan.run(tensors, targets, feeds, self.framework, self._resources))
        out = [_fetched(next(values), as_) if isinstance(each, Tensor) else None for each in wanted]
        return out if is_list else out[0]

    def close(self) -> None:
        """Release the state."""

    def __enter__(self) -> Self:
        self._entered = _DEFAULT.entering(self)
        self._entered.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._entered.__exit__(*details)


def _fetched(value: Any, framework: str) -> Any:
    if framework == "dlbridge":
        return exchange.from_dlpack(np.asarray(value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return value
    value = adapter.converter(framework)(
        np.asarray(value) if isinstance(value, np.generic) else value, readonly="share"
    )
    return value[()] if framework == "numpy" and value.ndim == 0 else value


_DEFAULT = Stack()


def get_default_session() -> Session | None:
    """Return the innermost session of this thread, or None."""
    return _DEFAULT.items[-1] if _DEFAULT.items else None


def evaluate(
    tensor: Tensor | Operation, feed_dict: dict[Any, Any] | None, session: Session | None
) -> Any:
    """Run a tensor in a session, or in the default one."""
    if session is None and not _DEFAULT.items:
        raise ValueError(
            "Cannot evaluate tensor using `eval()`: No default session is registered. Use "
            "`with sess.as_default()` or pass an explicit session to `eval(session=sess)`"
        )
    return (session or _DEFAULT.items[-1]).run(tensor, feed_dict)
