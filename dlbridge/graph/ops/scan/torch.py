"""Cumulative functions in PyTorch."""

from __future__ import annotations

import torch

from dlbridge.execution.registry import Context, Node, kernel, lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, Function
from dlbridge.graph.ops.scan.kernels import logsumexp_scan

lacks("torch", WIDE_UNSIGNED, ["Cumsum", "Cumprod"])


@kernel("CumulativeLogsumexp", framework="torch", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, torch.logcumsumexp)
