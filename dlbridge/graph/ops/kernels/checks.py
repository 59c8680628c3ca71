"""Checks of values while a graph runs, and printing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dlbridge import registry
from dlbridge.exchange import adapter
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, text
from dlbridge.text import escape_controls

# ---- checks ------------------------------------------------------------------------------------


@kernel("Assert", only=("numpy",), traceable=False)
def assert_(node: Node, context: Context) -> Function:
    summarize = node.attrs["summarize"]

    def check(condition: Any, *data: Any) -> Any:
        if np.ndim(condition):
            raise InvalidArgumentError(f"In[0] should be a scalar: {text(condition.shape)}", node)
        if not condition:
            shown = " ".join([summary(each, summarize) for each in data])
            raise InvalidArgumentError(f"assertion failed: {shown}", node)
        return ()

    return check


@kernel("CheckNumerics", traceable=False)
def check_numerics(node: Node, context: Context) -> Function:
    xp, message = context.xp, node.attrs["message"].decode(errors="replace")

    def check(x: Any) -> Any:
        if not bool(xp.all(xp.isfinite(x))):
            found = {
                "Inf": bool(xp.any(xp.isinf(x))),
                "NaN": bool(xp.any(xp.isnan(x))),
            }
            names = " and ".join([name for name, there in found.items() if there])
            raise InvalidArgumentError(f"{message} : Tensor had {names} values", node)
        return x

    return check


@kernel("Print", traceable=False)
def print_(node: Node, context: Context) -> Function:
    """Write message and data to standard error, the first `first_n` times of this plan."""
    message = escape_controls(node.attrs["message"].decode(errors="replace"), lines=True)
    most, summarize = node.attrs["first_n"], node.attrs["summarize"]
    lock, written = registry.lock(), [0]

    def show(x: Any, *data: Any) -> Any:
        with lock:
            due = most < 0 or written[0] < most
            written[0] += due
        if due:
            sys.stderr.write(message + "".join([_host(each, summarize) for each in data]) + "\n")
        return x

    return show


def _host(value: Any, summarize: int) -> str:
    if not isinstance(value, np.ndarray | np.generic):
        value = adapter.converter("numpy")(value, readonly="share")
    return summary(value, summarize)


def summary(value: Any, most: int) -> str:
    """Return the first `most` elements as text, as `[[1 2][3...]...]`; -1 is all."""
    value = np.asarray(value)
    count = value.size if most < 0 else min(most, value.size)
    return f"[{_rows(value, count)}{'...' if count < value.size else ''}]"


def _rows(value: Any, count: int) -> str:
    if value.ndim < 2:
        return " ".join(map(_element, value.reshape(-1)[:count].tolist()))
    shown = []
    for row in value:
        if count <= 0:
            break
        is_cut = row.ndim == 1 and row.size > count
        shown.append(f"[{_rows(row, count)}{'...' if is_cut else ''}]")
        count -= row.size
    return "".join(shown)


_QUOTED = str.maketrans({each: f"\\{each}" for each in "\\'\""})  # as TensorFlow shows text


def _element(value: Any) -> str:
    if isinstance(value, bytes):
        return escape_controls(value.decode(errors="replace").translate(_QUOTED))
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
