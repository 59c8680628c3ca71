"""Calls of kernels with tvm_ffi.Tensor."""

from __future__ import annotations

from dlbridge.kernels.binding import Streaming

BINDING = Streaming("tvm")
