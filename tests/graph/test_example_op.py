"""The documented example of an op type from outside: one folder, found by no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.execution import registry

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def softcap() -> Iterator[Any]:
    """Return the example's function, imported as a user imports it."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        from softcap import softcap

        yield softcap
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_the_op_runs_in_every_framework(softcap: Any, name: str, kind: str, framework: Any) -> None:
    framework(name)
    value = np.linspace(-100, 100, 12, dtype=kind).reshape(3, 4)
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        y = softcap(value, cap=5.0)
        assert y.shape.as_list() == [3, 4]
        found = session.run(y)
    assert found.dtype == kind
    tolerance = 5e-3 if kind == "float16" else 1e-6
    np.testing.assert_allclose(found, 5 * np.tanh(value / 5), rtol=tolerance)


def test_torch_has_its_own_kernel(softcap: Any, framework: Any) -> None:
    framework("torch")
    with tf.Graph().as_default():
        node = softcap([1.0]).op
    assert registry.find(node, "torch").factory.__module__ == "softcap.torch"
    assert registry.find(node, "numpy").factory.__module__ == "softcap.kernels"


def test_a_graph_with_the_op_is_exported_and_imported(softcap: Any) -> None:
    with tf.Graph().as_default() as graph:
        softcap(tf.constant([40.0, -1.0]), name="capped")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(graph.as_graph_def(), name="")
        np.testing.assert_allclose(session.run("capped:0"), 30 * np.tanh([40 / 30, -1 / 30]), 1e-6)


def test_other_dtypes_are_refused(softcap: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError, match="Softcap"):
        softcap([1, 2])
