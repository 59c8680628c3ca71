"""Calls during which NumPy warns of no floating-point errors: TensorFlow's kernels never do."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.signals import not_from_handler


def without_warnings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one as in a block of `np.errstate(all="ignore")`."""

    def call(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*values)

    return call if _SETTING is None else native.Quiet(function, call, *_SETTING)


def _find_setting() -> tuple[ContextVar[Any], object, object] | None:
    """Return where NumPy has what it does then: a context variable, its usual value, the quiet one.

    None for NumPy 1, which has it somewhere else.
    """
    found = list(Context().run(_quiet_context).items())
    if len(found) != 1:
        return None
    variable, quiet = found[0]
    try:
        return variable, Context().run(variable.get), quiet
    except not_from_handler(LookupError):  # it has no default
        return None


def _quiet_context() -> Context:
    with np.errstate(all="ignore"):
        return copy_context()


_SETTING = _find_setting()
