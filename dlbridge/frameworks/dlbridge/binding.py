"""Calls of kernels with Tensors of dlbridge."""

from __future__ import annotations

from dlbridge.kernels.direct import Direct

BINDING = Direct("dlbridge")
