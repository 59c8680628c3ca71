"""The number of elements of a range, for shape functions and kernels."""

from __future__ import annotations

from typing import Any

import numpy as np


def count(start: Any, limit: Any, delta: Any) -> int:
    """Return the length of the range of three NumPy scalars of one dtype.

    It is computed in that dtype, as TensorFlow does, since rounding may decide about the last one.

    Raises:
        ValueError: a step of 0, or one that leads away from the limit.
    """
    if delta == 0:
        raise ValueError("Requires delta != 0")
    if (delta > 0 and start > limit) or (delta < 0 and start < limit):
        order, sign = ("<=", ">") if delta > 0 else (">=", "<")
        raise ValueError(f"Requires start {order} limit when delta {sign} 0: {start}/{limit}")
    if np.asarray(start).dtype.kind in "iu":
        return -((int(start) - int(limit)) // int(delta))
    steps = np.divide(np.subtract(limit, start), delta)
    return int(np.ceil(np.abs(steps)))
