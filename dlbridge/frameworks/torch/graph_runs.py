"""Runs of torch: many nodes as one function of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dlbridge.execution.compiled import Body


def compile_body(body: Body, count: int, device: Any) -> Callable[..., Any]:  # noqa: ARG001
    """Return the function of a run: `count` arrays, then what it depends on, on the host."""
    compiled: Callable[..., Any] = torch.compile(
        lambda *values: body(values[:count], values[count:])
    )
    return compiled
