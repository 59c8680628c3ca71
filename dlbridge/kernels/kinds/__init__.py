"""Kinds of functions that `wrap` takes: recognised, checked, made targets of the core."""

from __future__ import annotations

from dlbridge.kernels.kinds.cuda_launch import NO_LAUNCH, Launch, read_launch
from dlbridge.kernels.kinds.python_kernel import read_signature
from dlbridge.kernels.kinds.recognition import (
    Function,
    alignment,
    device_type,
    is_known,
    locate,
    make_targets,
    recognise,
)

__all__ = [
    "NO_LAUNCH",
    "Function",
    "Launch",
    "alignment",
    "device_type",
    "is_known",
    "locate",
    "make_targets",
    "read_launch",
    "read_signature",
    "recognise",
]
