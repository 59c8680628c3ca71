"""Torch's kernels on a device that has no values: none looks at one, and all stay on the device.

torch's "meta" device stands for a GPU. What reads a value of it fails there, and so does what mixes
it with memory of the host; on a GPU the former makes the host wait.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS), str(TESTS / "graph")]

import test_array  # noqa: E402
import test_math  # noqa: E402
import test_nn  # noqa: E402

import dlbridge.graph as tf  # noqa: E402
from dlbridge.execution.backend import backend, devices  # noqa: E402
from dlbridge.execution.errors import OpError  # noqa: E402

# Their results' shapes depend on values, or they run on the host.
NEED_VALUES = {"DynamicPartition", "DynamicStitch", "ParallelDynamicStitch", "Where"}


class Soft:
    allow_soft_placement = True


@pytest.fixture(autouse=True)
def meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch have the device "GPU:0", which is "meta"."""
    backend_of_torch = backend("torch")
    plain = backend_of_torch.mover

    def mover(device: Any, looks: bool) -> Any:
        if device is None:
            return plain(device, looks)
        share = plain(None, False)
        return lambda x: x if getattr(x, "is_meta", False) else share(x).to("meta")

    found = [("CPU:0", torch.device("cpu")), ("GPU:0", torch.device("meta"))]
    monkeypatch.setattr(backend_of_torch, "devices", lambda: found)
    monkeypatch.setattr(backend_of_torch, "entered", lambda device: nullcontext())
    monkeypatch.setattr(backend_of_torch, "mover", mover)
    devices.cache_clear()
    yield
    devices.cache_clear()


def build(case: Any) -> Any:
    """Return graph, feeds and the operations that compute the results, which need a kernel."""
    with tf.Graph().as_default() as graph, tf.device("/device:GPU:0"):
        arrays = [np.asarray(each) for each in case.inputs]
        with tf.device(None):
            holders = [tf.placeholder(each.dtype, [None] * each.ndim) for each in arrays]
        results = case.build(tf, *holders)
    results = results if isinstance(results, list | tuple) else [results]
    found = [each for each in results if each.op.type != "Placeholder"]
    return graph, dict(zip(holders, case.inputs, strict=True)), found


def difference(case: Any) -> str | None:
    """Return what fails on the device alone."""
    try:
        graph, feeds, results = build(case)
        with tf.Session(graph=graph, config=Soft()) as session:
            session.run(results, feeds)
    except (OpError, TypeError, ValueError, NotImplementedError):
        return None  # refused everywhere
    with tf.Session(graph=graph, framework="torch", config=Soft()) as session:
        try:
            session.run([each.op for each in results], feeds)
        except Exception as error:
            types = {each.type for each in graph.get_operations()}
            return None if types & NEED_VALUES else repr(error)
    return None


@pytest.mark.parametrize("family", [test_array, test_math, test_nn])
def test_kernels_of_torch_stay_on_their_device(family: Any) -> None:
    found = {case.name: difference(case) for case in test_math.in_ring(family.CASES)}
    assert {name: text for name, text in found.items() if text} == {}
