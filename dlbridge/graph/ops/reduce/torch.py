"""Dtypes that PyTorch does not reduce."""

from __future__ import annotations

from dlbridge.execution.registry import lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED

lacks(
    "torch",
    WIDE_UNSIGNED,
    ["Sum", "Prod", "Mean", "Max", "Min", "EuclideanNorm", "ArgMax", "ArgMin", "TopK", "TopKV2"],
)
