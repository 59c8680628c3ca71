"""The bits of integers: what users call as `tf.bitwise`."""

from __future__ import annotations

from dlbridge.graph.ops.functions import binary, unary

__all__ = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "invert",
    "left_shift",
    "population_count",
    "right_shift",
]


_INTEGERS = "Of integers, signed and unsigned, in their dtype."


bitwise_and = binary("BitwiseAnd", "Return the bits set in both.", "bitwise_and", _INTEGERS)


bitwise_or = binary("BitwiseOr", "Return the bits set in either.", "bitwise_or", _INTEGERS)


bitwise_xor = binary("BitwiseXor", "Return the bits set in one of both.", "bitwise_xor", _INTEGERS)


left_shift = binary(
    "LeftShift",
    "Return x with its bits moved up by y.",
    "left_shift",
    f"{_INTEGERS} A negative distance is taken as 0, one beyond the width as the width less 1.",
)


right_shift = binary(
    "RightShift",
    "Return x with its bits moved down by y.",
    "right_shift",
    f"{_INTEGERS} The sign stays: -8 by 1 gives -4. Distances as of `left_shift`.",
)


invert = unary("Invert", "Return x with all bits changed.", details=_INTEGERS)


population_count = unary(
    "PopulationCount",
    "Return the number of bits set.",
    "population_count",
    "Of integers, signed and unsigned, as uint8; -1 of int32 gives 32.",
)
