"""The bits of integers."""

from __future__ import annotations

from dlbridge.graph.core.inference import broadcast, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import INTEGER

for _name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    define(f"{_name}(x: T, y: T, *, T: {INTEGER}) -> z: T", shape=broadcast, commutative=True)
for _name in ("LeftShift", "RightShift"):
    define(f"{_name}(x: T, y: T, *, T: {INTEGER}) -> z: T", shape=broadcast)
define(f"Invert(x: T, *, T: {INTEGER}) -> y: T", shape=unchanged)
define(f"PopulationCount(x: T, *, T: {INTEGER}) -> y: uint8", shape=unchanged)
