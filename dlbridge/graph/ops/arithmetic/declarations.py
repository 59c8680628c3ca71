"""Element-wise arithmetic of two or more operands."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, broadcast, merge
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import DIVISIBLE, FLOAT, FLOAT_COMPLEX, NUMBER, Shapes

# Op type -> the dtypes of both operands and of the result.
_OF_TWO = {
    "Add": "{bfloat16, float16, float32, float64, uint8, int8, int16, int32, int64, complex64, "
    "complex128, string}",
    "AddV2": "{bfloat16, float16, float32, float64, uint8, uint16, uint32, uint64, int8, int16, "
    "int32, int64, complex64, complex128}",
    "Sub": "{bfloat16, float16, float32, float64, uint8, int8, uint16, int16, int32, int64, "
    "complex64, complex128, uint32, uint64}",
    "Mul": "{bfloat16, float16, float32, float64, uint8, int8, uint16, int16, int32, uint32, "
    "uint64, int64, complex64, complex128}",
    "Div": DIVISIBLE,
    "RealDiv": DIVISIBLE,
    "FloorDiv": DIVISIBLE,
    "TruncateDiv": DIVISIBLE,
    "FloorMod": "{int8, int16, int32, int64, uint8, uint16, uint32, uint64, bfloat16, float16, "
    "float32, float64}",
    "Mod": "{int32, int64, float16, float16, bfloat16, float32, float64}",
    "TruncateMod": "{int32, int64, bfloat16, float16, float32, float64}",
    "DivNoNan": "{float16, float32, bfloat16, float64, complex64, complex128}",
    "MulNoNan": FLOAT_COMPLEX,
    "Pow": "{bfloat16, float32, float16, float64, int8, int16, int32, int64, complex64, "
    "complex128}",
    "Maximum": "{bfloat16, float16, float32, float64, int8, uint8, int16, uint16, int32, uint32, "
    "int64, uint64}",
    "Minimum": "{bfloat16, float16, float32, float64, int8, uint8, int16, uint16, int32, uint32, "
    "int64, uint64}",
    "SquaredDifference": "{bfloat16, float16, float32, float64, int32, int64, complex64, "
    "complex128}",
    "Xdivy": "{float16, bfloat16, float32, float64, complex64, complex128}",
    "Xlogy": "{float16, bfloat16, float32, float64, complex64, complex128}",
    "Xlog1py": "{float16, bfloat16, float32, float64, complex64, complex128}",
}
_COMMUTATIVE = {"AddV2", "Mul", "SquaredDifference"}


def _sum(c: Inference) -> Shapes:
    """All operands have one shape."""
    dims = c.dims(0)
    for i in range(1, len(c.inputs)):
        dims = merge(dims, c.dims(i), c)
    return [dims]


def _clip(c: Inference) -> Shapes:
    """Bounds are scalars, or have the shape of the clipped tensor."""
    dims = c.dims(0)
    for i in (1, 2):
        if c.dims(i) != ():
            dims = merge(dims, c.dims(i), c) if c.dims(i) is not None else dims
    return [dims]


for _name, _types in _OF_TWO.items():
    define(
        f"{_name}(x: T, y: T, *, T: {_types}) -> z: T",
        shape=broadcast,
        commutative=_name in _COMMUTATIVE,
        aggregate=_name == "AddV2",
    )
define(f"Atan2(y: T, x: T, *, T: {FLOAT}) -> z: T", shape=broadcast)
define("NextAfter(x1: T, x2: T, *, T: {float64, float32} = float32) -> output: T", shape=broadcast)
define(
    "Complex(real: T, imag: T, *, T: {float32, float64} = float32, "
    "Tout: {complex64, complex128} = complex64) -> out: Tout",
    shape=broadcast,
)
define(
    f"AddN(inputs: N * T, *, N: int >= 1, T: {NUMBER[:-1]}, variant}}) -> sum: T",
    shape=_sum,
    commutative=True,
    aggregate=True,
)
define(
    f"AccumulateNV2(inputs: N * T, *, N: int >= 1, T: {NUMBER}, shape: shape) -> sum: T",
    shape=_sum,
    commutative=True,
    aggregate=True,
)
define(
    f"ClipByValue(t: T, clip_value_min: T, clip_value_max: T, *, T: {NUMBER}) -> output: T",
    shape=_clip,
)
