"""OpenVINO: a tensor's memory out, as the type that its `element_type` names.

`Tensor.data` shows bfloat16 as float16, and float8 and packed types as bytes.
"""

from __future__ import annotations

import sys
from typing import Any

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.exchange.adapter import Holder
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.shape import row_major
from dlbridge.tensor.values import READ_ONLY

_CPU = (1, 0)
_NAMES = {
    "boolean": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu",
    "i4": "int4",
    "u4": "uint4",
    "f4e2m1": "float4_e2m1fn",
}


class OpenVINO(Holder):
    """openvino.Tensor in the host's memory."""

    name = "openvino"

    def recognises(self, cls: type) -> bool:
        kind = getattr(sys.modules.get("openvino"), "Tensor", None)
        return kind is not None and issubclass(cls, kind)

    def held(self, x: Any, policy: Policy, context: ExchangeContext) -> Any:
        """Return a Tensor over the memory, which `x` keeps."""
        name = x.element_type.get_type_name()
        if name not in _NAMES:
            raise ExchangeError(
                "dtype", f"from_dlpack: DLPack has no name for openvino's {name}; convert it first"
            )
        dtype = DType(_NAMES[name])
        context.route.append("openvino.Tensor.data")
        array, shape = x.data, tuple(x.shape)
        steps = row_major(shape)
        if dtype.bits >= 8:
            steps = tuple(step // x.element_type.size for step in x.strides)
        flags = 0 if array.flags.writeable else READ_ONLY
        return native.take_object(x, array.ctypes.data, shape, steps, dtype.triple, _CPU, flags)


HOLDER = OpenVINO()
