"""Calls of kernels with Tensors of dlbridge."""

from __future__ import annotations

from dlbridge.kernels.binding import Direct

BINDING = Direct("dlbridge")
