"""Segment sums in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel, lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, Function, element

lacks("torch", WIDE_UNSIGNED, ["UnsortedSegmentSum"])


@kernel("UnsortedSegmentSum", framework="torch", host=(2,))
def unsorted_segment_sum(node: Node, context: Context) -> Function:
    """Add rows to the rows that identifiers name; negative ones are left out.

    Where values are not checked, those that are too large are left out as well.
    """

    def reduce(data: Any, identifiers: Any, number: Any) -> Any:
        count, rank = int(number), identifiers.ndim
        flat = identifiers.reshape(-1).to(torch.int64)
        too_large = flat >= count
        if data.shape[:rank] != identifiers.shape or (context.checks and bool(too_large.any())):
            raise InvalidArgumentError(
                f"segment_ids must be less than {count} and their shape start data's: "
                f"{list(identifiers.shape)} and {list(data.shape)}",
                node,
            )
        rows = data.reshape(flat.shape[0], *data.shape[rank:])
        out = torch.zeros((count + 1, *data.shape[rank:]), dtype=data.dtype, device=data.device)
        return out.index_add_(0, torch.where((flat < 0) | too_large, count, flat), rows)[:count]

    return in_wider_data(context, node, reduce)


def in_wider_data(context: Context, node: Node, function: Function) -> Function:
    """Compute a half in float32; only the first argument is one."""
    if element(node).name not in ("float16", "bfloat16"):
        return function
    kind = context.dtype(element(node))
    return lambda data, *others: function(data.to(torch.float32), *others).to(kind)
