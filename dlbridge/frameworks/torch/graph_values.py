"""How torch runs the nodes of a graph."""

from __future__ import annotations

import torch

without_gradients = torch.no_grad
"""A block in which torch computes and remembers nothing: a graph has no gradients of its own.

Results are ordinary tensors, as those of `torch.inference_mode` are not.
"""
