"""DLPack of symbolic tensors: they are evaluated in the default session, and the value goes out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    from dlbridge.graph.core.tensor import Tensor


class _Pending(threading.local):
    """The value that `__dlpack_device__` found, until `__dlpack__` takes it.

    A consumer asks for the device first; the graph is to run once.
    """

    tensor: Tensor | None = None
    session: Any = None
    value: Any = None

    def keep(self, tensor: Tensor | None, session: Any, value: Any) -> None:
        """Remember one value; the one before is forgotten."""
        self.tensor, self.session, self.value = tensor, session, value


_pending = _Pending()


def device_of(tensor: Tensor) -> tuple[int, int]:
    """Run `tensor` and return (device type, device id) of its value."""
    session = _session(tensor)
    value = session.run(tensor, as_="dlbridge")
    _pending.keep(tensor, session, value)
    device: tuple[int, int] = value.__dlpack_device__()
    return device


def export(tensor: Tensor, keywords: dict[str, Any]) -> Any:
    """Return the capsule of the value of `tensor`: the one whose device was asked for last."""
    session = _session(tensor)
    if _pending.tensor is tensor and _pending.session is session:
        value = _pending.value
        _pending.keep(None, None, None)
    else:
        value = session.run(tensor, as_="dlbridge")
    return value.__dlpack__(**keywords)


def _session(tensor: Tensor) -> Any:
    from dlbridge.graph.session.session import get_default_session

    session = get_default_session()
    if session is None or session.graph is not tensor.graph:
        which = "there is none" if session is None else "the one there is runs another graph"
        raise ExchangeError(
            "lazy",
            f"__dlpack__ of {tensor!r}: a symbolic tensor is evaluated in the default session, and "
            f"{which}; use `with tf.Session():`, or pass session.run(x, as_='dlbridge')",
        )
    return session
