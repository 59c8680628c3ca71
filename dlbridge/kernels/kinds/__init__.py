"""Kinds of functions that `wrap` takes: recognised, checked, made targets of the core."""

from __future__ import annotations

from dlbridge.kernels.kinds.cuda_launch import NO_LAUNCH, Launch, read_launch
from dlbridge.kernels.kinds.python_kernel import read_signature
from dlbridge.kernels.kinds.recognition import Function, is_known, recognise
from dlbridge.kernels.kinds.targets import alignment, device_type, make_targets

__all__ = [
    "NO_LAUNCH",
    "Function",
    "Launch",
    "alignment",
    "device_type",
    "is_known",
    "make_targets",
    "read_launch",
    "read_signature",
    "recognise",
]
