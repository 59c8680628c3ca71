"""Images and filters for tests of tf.nn, the same in each run."""

from __future__ import annotations

from typing import Any

import numpy as np

FRAMEWORKS = ("numpy", "torch", "jax")
RANDOM = np.random.default_rng(7)
IMAGES = RANDOM.standard_normal((2, 6, 7, 4)).astype("float32")


def filters(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("float32")


WEIGHTS, DEPTHWISE, SCALE = filters(3, 3, 4, 6), filters(3, 2, 4, 2), filters(4)
TRANSPOSED = filters(3, 3, 5, 4)
