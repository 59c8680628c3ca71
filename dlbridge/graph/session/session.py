"""Session: runs a graph; which one is the default."""

from __future__ import annotations

import threading
from typing import Any, Self

from dlbridge.graph.core.defaults import SESSIONS
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.session.base_session import BaseSession, Feed


class Session(BaseSession):
    """Runs operations of one graph and keeps the state of its variables.

    In a `with` block it is the default session and its graph the default graph; the end of the
    block closes it. Runs may go on in several threads at a time.

    Args:
        target: "" for this process.
        graph: None is the default graph.
        config: of its attributes count `allow_soft_placement`, whether what asks for a device that
            is missing runs on another one, and `log_device_placement`, whether the place of each
            operation is written to standard error.
        framework: "numpy", "torch", "jax" or "cupy": where operations run that ask for none.
        compile: whether what runs in torch is compiled by `torch.compile`, too.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     total = tf.constant(3.0) + tf.constant(4.0)
        ...     print(tf.Session().run(total))
        7.0
    """

    def __enter__(self) -> Self:
        blocks = (self._graph.as_default(), self.as_default())
        for block in blocks:
            block.__enter__()
        _ENTERED.blocks.append(blocks)
        return self

    def __exit__(self, *details: object) -> None:
        try:
            for block in reversed(_ENTERED.blocks.pop()):
                block.__exit__(*details)
        finally:
            self.close()


class InteractiveSession(BaseSession):
    """A session that is the default one of its thread from its creation until `close`."""

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        config: Any = None,
        framework: str = "numpy",
        compile: bool = False,  # noqa: A002
    ) -> None:
        super().__init__(target, graph, config, framework, compile)
        self._blocks = [SESSIONS.entering(self, enforce_nesting=False)]
        if graph is not None:
            self._blocks.append(graph.as_default())
        for block in self._blocks:
            block.__enter__()

    def close(self) -> None:
        """Stop being the default session, and release everything."""
        while self._blocks:
            self._blocks.pop().__exit__()
        super().close()


class _Entered(threading.local):
    """The blocks of `with session:` that a thread is in."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, ...]] = []


_ENTERED = _Entered()


def get_default_session() -> Any:
    """Return the innermost session of this thread, or None."""
    return SESSIONS.items[-1] if SESSIONS.items else None


def current_session(call: str) -> Any:
    """Return the default session for a call that was given none.

    Raises:
        ValueError: there is none.
    """
    session = get_default_session()
    if session is None:
        raise ValueError(
            f"{call}: No default session is registered. Use `with sess.as_default()` or pass an "
            "explicit session"
        )
    return session


def evaluate(fetch: Tensor | Operation, feed_dict: Feed | None, session: BaseSession | None) -> Any:
    """Run a tensor or an operation in a session, or in the default one."""
    chosen: BaseSession | None = session or get_default_session()
    if chosen is None:
        call, name = ("eval", "tensor") if isinstance(fetch, Tensor) else ("run", "operation")
        raise ValueError(
            f"Cannot {'evaluate' if call == 'eval' else 'execute'} {name} using `{call}()`: No "
            "default session is registered. Use `with sess.as_default()` or pass an explicit "
            f"session to `{call}(session=sess)`"
        )
    if session is None and chosen.graph is not fetch.graph:
        raise ValueError(
            f"Cannot use the default session to evaluate {fetch!r}: it is of another graph than "
            "the session's. Pass an explicit session of its graph"
        )
    return chosen.run(fetch, feed_dict)
