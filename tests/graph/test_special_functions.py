"""Special functions in NumPy: the same values with SciPy and without."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph.ops.kernels.numpy import special_function

FUNCTIONS = {"Erfinv": tf.math.erfinv, "Ndtri": tf.math.ndtri, "Digamma": tf.digamma}
nan, inf = math.nan, math.inf
EDGES = {
    "Erfinv": {-1.0: -inf, 0.0: 0.0, 1.0: inf, 1.5: nan, -1.5: nan, nan: nan},
    "Ndtri": {-0.5: nan, 0.0: -inf, 0.5: 0.0, 1.0: inf, 1.5: nan, nan: nan},
    "Digamma": {-inf: nan, -1.0: nan, 0.0: nan, 1.0: -0.5772156649015329, inf: inf, nan: nan},
}


@pytest.fixture(params=["with SciPy", "without SciPy"])
def scipy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "with SciPy":
        pytest.importorskip("scipy.special")
    else:
        monkeypatch.setitem(sys.modules, "scipy.special", None)


@pytest.mark.usefixtures("scipy")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_at_the_edges(name: str) -> None:
    edges = EDGES[name]
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(FUNCTIONS[name](tf.constant(list(edges), tf.float64)))
    np.testing.assert_allclose(found, list(edges.values()), rtol=1e-12)


@pytest.mark.usefixtures("scipy")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_shape_and_dtype_stay(name: str, kind: str) -> None:
    value = np.full((2, 1, 3), 0.25, kind)
    with tf.Graph().as_default(), tf.Session() as session:
        found: Any = session.run(FUNCTIONS[name](tf.constant(value)))
        scalar = session.run(FUNCTIONS[name](tf.constant(value[0, 0, 0])))
    assert found.dtype == kind
    assert found.shape == value.shape
    assert scalar.shape == ()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_ways_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy.special")
    grid = np.concatenate([np.linspace(0.001, 0.999, 999), np.linspace(-0.9, -0.1, 80)])
    grid = grid if name != "Ndtri" else grid[grid > 0]
    fast = special_function(name)(grid)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    slow = special_function(name)(grid).astype(np.float64)
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-13)
