"""Calls of kernels with pyarrow.Tensor."""

from __future__ import annotations

from dlbridge.kernels.binding import Direct

BINDING = Direct("pyarrow")
