"""A family of op types from outside dlbridge, laid out as each one in `dlbridge/graph/ops`.

Its one op type, Softcap, computes cap * tanh(x / cap): close to x where |x| is small, and at most
cap.
"""

from __future__ import annotations

from importlib import import_module

from dlbridge.execution import registry
from softcap import declarations as declarations  # the op type is known from here on
from softcap.functions import softcap as softcap


def _load(module: str) -> None:
    """Import the kernels when the first node runs: those for every framework, those for torch."""
    if module in ("kernels", "torch"):
        import_module(f"{__name__}.{module}")


registry.add_families(_load)
