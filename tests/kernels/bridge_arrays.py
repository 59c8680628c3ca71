"""The parameters of a small model, in NumPy, for the tests of `dlbridge.bridge`."""

from __future__ import annotations

import numpy as np

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


TREE = {"lower": {"w": normal(4, 8), "b": normal(8)}, "upper": [normal(8, 2)]}
