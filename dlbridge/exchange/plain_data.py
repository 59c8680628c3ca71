"""Data that may stand beside tensors and holds none: numbers, text, dates, functions, dtypes."""

from __future__ import annotations

import re
from datetime import date, time, timedelta, tzinfo
from enum import Enum
from numbers import Number
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    ModuleType,
    NoneType,
    NotImplementedType,
)
from typing import Any
from uuid import UUID

import numpy as np

from dlbridge import registry
from dlbridge.device import Device
from dlbridge.dtype import DType
from dlbridge.shape import TensorShape

_PLAIN = (
    *(NoneType, bool, int, float, complex, str, bytes, bytearray, Number, Enum),
    *(date, time, timedelta, tzinfo, UUID, PurePath, range, slice, re.Pattern),
    *(EllipsisType, NotImplementedType),
    *(type, FunctionType, BuiltinFunctionType, ModuleType, np.ufunc),
    *(np.ndarray, np.generic, np.dtype, DType, Device, TensorShape),
)
# Names of the classes by which frameworks describe tensors, in lower case.
_DESCRIPTIONS = frozenset(
    ("dtype", "datatype", "device", "layout", "memory_format", "size", "tensorshape")
)


def is_plain(x: Any) -> bool:
    """Return whether `x`, which is no tensor and no container, is plain data."""
    if isinstance(x, (set, frozenset)):
        return all(map(is_plain, x))
    if isinstance(x, _PLAIN):
        return True
    return type(x).__name__.lower() in _DESCRIPTIONS and _is_of_framework(x)


def _is_of_framework(x: object) -> bool:
    return registry.row_of_root(str(type(x).__module__).partition(".")[0]) is not None
