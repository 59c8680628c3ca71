"""Register Tensors with torch's own tools: how to batch them, and that they are safe to load."""

from __future__ import annotations

import sys
from typing import Any

from dlbridge.tensor import pickling
from dlbridge.tensor.tensor import Tensor


def let_collate() -> None:
    """Let `torch.utils.data.default_collate` stack Tensors, as it does NumPy's arrays."""
    sys.modules["torch.utils.data._utils.collate"].default_collate_fn_map[Tensor] = _collate


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Return a torch tensor with the Tensors along a new first dimension, a copy of them."""
    from dlbridge.frameworks.conversions import to_torch

    collate = sys.modules["torch.utils.data._utils.collate"].collate
    tensors = [to_torch(each, readonly="share") for each in batch]
    return collate(tensors, collate_fn_map=collate_fn_map)


def let_load() -> None:
    """Let `torch.load(weights_only=True)` read Tensors: `rebuild` checks all that it is given."""
    add = getattr(sys.modules["torch.serialization"], "add_safe_globals", None)  # torch 2.4
    if add is not None:
        add([Tensor, pickling.rebuild])
