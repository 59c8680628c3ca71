"""Every operation that the tests of graphs have cases for, in CuPy: the values are NumPy's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS), str(TESTS / "graph")]

import test_array  # noqa: E402
import test_math  # noqa: E402
import test_nn  # noqa: E402

import dlbridge.graph as tf  # noqa: E402
from dlbridge.execution.errors import OpError  # noqa: E402

pytest.importorskip("scipy")
# Products in another order of their sums, and iterations that stop elsewhere.
TOLERANCE = 1e-5


def run(case: Any, framework: str) -> Any:
    """Return the values, or the error."""
    with tf.Graph().as_default() as graph:
        arrays = [np.asarray(each) for each in case.inputs]
        holders = [tf.placeholder(each.dtype, [None] * each.ndim) for each in arrays]
        results = case.build(tf, *holders)
    results = list(results) if isinstance(results, list | tuple) else [results]
    with tf.Session(graph=graph, framework=framework) as session:
        try:
            return session.run(results, dict(zip(holders, case.inputs, strict=True)))
        except OpError as error:
            return error


def difference(case: Any, machine: Any) -> str | None:
    """Return what is other in CuPy, or None."""
    try:
        wanted = run(case, "numpy")
    except (TypeError, ValueError, NotImplementedError):
        return None  # refused while the graph is built
    found = run(case, "cupy")
    faults = machine.forget_faults()
    if faults:
        return faults[0]
    if isinstance(wanted, OpError):  # values are not looked at on devices
        return None
    if isinstance(found, OpError):
        return str(found)
    for value, want in zip(map(np.asarray, found), map(np.asarray, wanted), strict=True):
        if (value.shape, value.dtype) != (want.shape, want.dtype):
            return f"{value.dtype}{value.shape} instead of {want.dtype}{want.shape}"
        if value.dtype.kind in "fc" and np.allclose(value, want, TOLERANCE, TOLERANCE, True):
            continue
        if value.tobytes() != want.tobytes() and not np.array_equal(value, want):
            return f"{value} instead of {want}"
    return None


@pytest.mark.parametrize("family", [test_array, test_math, test_nn])
def test_values_in_cupy_are_those_in_numpy(machine: Any, family: Any) -> None:
    cases = test_math.in_ring(family.CASES)
    found = {case.name: difference(case, machine) for case in cases}
    assert {name: text for name, text in found.items() if text} == {}
