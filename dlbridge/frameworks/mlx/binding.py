"""Calls of kernels with mlx arrays."""

from __future__ import annotations

from dlbridge.kernels.binding import Direct

BINDING = Direct("mlx", is_immutable=True)
