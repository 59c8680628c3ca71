"""Small values in torch: NumPy's inner loops give what torch's functions give, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from execution.test_loops import samples
from hypothesis import given, settings
from hypothesis import strategies as st

import dlbridge.graph as tf
from dlbridge._core import native
from dlbridge.execution import registry
from dlbridge.execution.backend import backend
from dlbridge.graph.core.default_graph import apply

F4 = np.dtype("f4")
DTYPES = "?bBhilfd"
ADD = ((np.add, (0, 1)),)


@pytest.fixture(scope="module")
def torch(framework: Callable[[str], Any]) -> Any:
    torch = framework("torch")
    from dlbridge.frameworks.torch import internals, proofs

    if proofs.proof() is None:
        pytest.skip(f"torch {torch.__version__} computes everything itself")
    assert internals.guard_is_open()  # as plans find out
    return torch


def exact() -> Iterator[tuple[str, str]]:
    """Return each op type that runs in the loops, with the dtypes."""
    registry.load_framework("torch")
    for (op_type, where), spec in registry._SPECS.items():
        for letter in DTYPES if where is None and spec.ufunc else "":
            dtype = tf.as_dtype(np.dtype(letter))
            if backend("torch").is_exact(str(spec.ufunc), dtype):
                yield op_type, letter


class Twins:
    """Two nodes of one type, which run in the loops, or each in torch."""

    def __init__(self, op_type: str, dtype: np.dtype, monkeypatch: Any) -> None:
        with tf.Graph().as_default() as graph:
            self.inputs = [tf.placeholder(dtype), tf.placeholder(dtype)]
            spec = registry._SPECS[op_type, None]
            count = getattr(np, str(spec.ufunc)).nin
            first = apply(op_type, tuple(self.inputs[:count]), {}, None).outputs[0]
            second = apply(op_type, tuple(self.inputs[::-1][-count:]), {}, None).outputs[0]
        self.outputs = [first, second]
        self.fast, self.slow = (tf.Session(graph=graph, framework="torch") for _ in range(2))
        self.inputs = self.inputs[:count]
        feeds = dict.fromkeys(self.inputs, np.ones(2, dtype))
        self.run(self.fast, feeds)
        with monkeypatch.context() as patch:
            patch.setattr(type(backend("torch")), "is_exact", lambda *_: False)
            self.run(self.slow, feeds)

    def run(self, session: Any, feeds: Any) -> list[Any]:
        found: list[Any] = session.run(self.outputs, feeds, to="torch")
        return found

    def check(self, torch: Any, values: list[Any]) -> None:
        feeds = dict(zip(self.inputs, values, strict=False))
        pairs = zip(self.run(self.fast, feeds), self.run(self.slow, feeds), strict=True)
        for mine, theirs in pairs:
            assert type(mine) is torch.Tensor
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            assert bits(mine) == bits(theirs), self.outputs

    def is_fast(self, values: list[Any]) -> bool:
        trace = tf.Trace()
        self.fast.run(self.outputs, dict(zip(self.inputs, values, strict=False)), trace=trace)
        return any(event["args"].get("loops") for event in trace.events)


def bits(tensor: Any) -> bytes:
    """Return the bits of all elements; no standard says which NaN an operation gives."""
    array = tensor.contiguous().numpy()
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.tobytes()


def special(dtype: np.dtype, count: int, seed: int) -> np.ndarray:
    """Return samples, denormal numbers and both zeros among them."""
    values = samples(dtype, count, seed).copy()
    if dtype.kind == "f" and count:
        random = np.random.default_rng(seed)
        tiny = np.array([0.0, -0.0, 5e-324, -1e-310, 1e-40, -1e-44, np.inf, np.nan], "f8")
        chosen = random.random(count) < 0.3
        values[chosen] = random.choice(tiny.astype(dtype), chosen.sum())
    return values


# ---- values ------------------------------------------------------------------------------------


def test_every_op_type_of_every_dtype(torch: Any, monkeypatch: Any) -> None:
    rows = list(exact())
    assert {("AddV2", "f"), ("Mul", "l"), ("Less", "d"), ("LogicalAnd", "?")} <= set(rows)
    assert not {name for name, _ in rows} & {"Exp", "Pow", "Floor", "Atan2"}
    assert not {("Maximum", "f"), ("AddV2", "?"), ("AddV2", "e")} & set(rows)
    tried = 0
    for op_type, letter in rows:
        dtype = np.dtype(letter)
        try:
            twins = Twins(op_type, dtype, monkeypatch)
        except (TypeError, ValueError):
            continue  # the op type does not take this dtype
        x, y = (torch.from_numpy(special(dtype, 301, seed)) for seed in (1, 2))
        assert twins.is_fast([x, y])
        for is_flushed in (False, True):
            torch.set_flush_denormal(is_flushed)
            try:
                twins.check(torch, [x, y])
            finally:
                torch.set_flush_denormal(False)
        tried += 1
    assert tried > 80


@pytest.mark.full
def test_the_kernels_of_torch_may_be_imported_before_those_for_all(
    run_python: Any, framework: Callable[[str], Any]
) -> None:
    """Whichever module comes first: a kernel finds out which ufunc it equals when it is asked."""
    framework("torch")
    run_python("""
    import dlbridge.graph.ops.kernels.torch
    import dlbridge.graph as tf
    from dlbridge.execution import registry

    with tf.Graph().as_default():
        nodes = [op(tf.constant([1.0, 2.0])).op for op in (tf.negative, tf.sqrt, tf.square)]
    found = [registry.find(node, "torch").ufunc for node in nodes]
    assert found == ["negative", "sqrt", "square"], found
    """).check()


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda x: x,
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2] if x.ndim else x,
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "broadcast": lambda x: x[:1].expand(x.shape) if x.ndim and x.shape[0] else x,
    "offset": lambda x: x.reshape(-1).repeat(2)[x.numel() :].reshape(x.shape),
}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_shape_and_layout(torch: Any, data: Any) -> None:
    rows = [("AddV2", "f"), ("Sub", "d"), ("Mul", "b"), ("RealDiv", "f"), ("Less", "l")]
    op_type, letter = data.draw(st.sampled_from(rows))
    dims = st.lists(st.sampled_from([0, 1, 2, 5, 40]), max_size=3)
    shape = data.draw(dims)
    other = [data.draw(st.sampled_from([each, 1])) for each in shape]
    other = other[data.draw(st.integers(0, len(other))) :]
    values = []
    for seed, each in enumerate(data.draw(st.permutations([shape, other]))):
        array = special(np.dtype(letter), int(np.prod(each)), seed).reshape(each)
        layout = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))]
        values.append(layout(torch.from_numpy(array)))
    with pytest.MonkeyPatch.context() as patch:
        Twins(op_type, np.dtype(letter), patch).check(torch, values)


# ---- which values ------------------------------------------------------------------------------


@pytest.fixture
def loops(torch: Any) -> Any:
    return native.Loops((F4, F4), ADD, (2,), torch.add, single=True, small_torch=64)


TAKEN: dict[str, Callable[[Any], Any]] = {
    "plain": lambda torch: torch.ones(3),
    "without elements": lambda torch: torch.ones(0, 3),
    "0-d": lambda torch: torch.tensor(2.0),
    "parameter without grad": lambda torch: torch.nn.Parameter(torch.ones(3), False),
    "of inference mode": lambda torch: _inference(torch),
    "small": lambda torch: torch.ones(64),
}
LEFT: dict[str, Callable[[Any], Any]] = {
    "requires grad": lambda torch: torch.ones(3, requires_grad=True),
    "strided": lambda torch: torch.ones(3, 4).t(),
    "of a subclass": lambda torch: torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {})),
    "unaligned": lambda torch: torch.frombuffer(bytearray(9), dtype=torch.float32, offset=1),
    "negated": lambda torch: torch.ones(3, dtype=torch.complex64).conj().imag,
    "of another dtype": lambda torch: torch.ones(3, dtype=torch.float64),
    "on no device": lambda torch: torch.ones(3, device="meta"),
    "large": lambda torch: torch.ones(65),
    "sparse": lambda torch: torch.ones(3).to_sparse(),
}


def _inference(torch: Any) -> Any:
    with torch.inference_mode():
        return torch.ones(3)


@pytest.mark.parametrize("name", TAKEN)
def test_plain_tensors_are_taken(name: str, torch: Any, loops: Any) -> None:
    x = TAKEN[name](torch)
    assert loops.takes(x, x)
    result, expected = loops(x, x), torch.add(x, x)
    assert type(result) is torch.Tensor
    assert torch.equal(result, expected)
    assert result.is_inference() == expected.is_inference()
    assert not result.requires_grad
    assert result.untyped_storage().resizable()  # torch's own memory


@pytest.mark.parametrize("name", LEFT)
def test_other_tensors_are_left_to_torch(name: str, torch: Any, loops: Any) -> None:
    x = LEFT[name](torch)
    assert not loops.takes(x, x)
    result, expected = loops(x, x), torch.add(x, x)
    assert (result.shape, result.dtype, result.device) == (
        expected.shape, expected.dtype, expected.device,
    )  # fmt: skip
    assert result.requires_grad == expected.requires_grad


MODES: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "autocast": lambda torch: torch.autocast("cpu"),
    "function mode": lambda torch: torch.overrides.TorchFunctionMode(),
    "profiler": lambda torch: torch.profiler.profile(),
}


@pytest.mark.parametrize("name", MODES)
def test_under_a_mode_torch_computes(name: str, torch: Any, loops: Any) -> None:
    x = torch.ones(3)
    with MODES[name](torch):
        assert not loops.takes(x, x)
    assert loops.takes(x, x)
    with torch.device("meta"):  # where new tensors go, to which these are no matter
        assert loops.takes(x, x)
        assert loops(x, x).tolist() == [2, 2, 2]


def test_a_derivative_goes_through_torch(torch: Any, loops: Any) -> None:
    x = torch.ones(3)
    value, tangent = torch.func.jvp(lambda x: loops(x, x), (x,), (x,))
    assert (value.tolist(), tangent.tolist()) == ([2, 2, 2], [2, 2, 2])
    assert torch.func.vmap(lambda x: loops(x, x))(torch.ones(2, 3)).shape == (2, 3)
    with torch.no_grad():  # as runs of a session are
        assert loops.takes(x.requires_grad_(), x)


# ---- runs --------------------------------------------------------------------------------------


def test_small_runs_are_in_the_loops_and_large_ones_in_torch(torch: Any) -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None])
        y = (x + 1.0) * 2.0
        session = tf.Session(framework="torch")
    most = backend("torch").small
    for count, is_small in ((2, True), (most, True), (most + 1, False)):
        trace = tf.Trace()
        value = session.run(y, {x: np.ones(count)}, trace=trace)
        assert (value == 4).all()
        (event,) = (event for event in trace.events if event["args"]["nodes"])
        assert (event["tid"], event["args"]["loops"]) == ("torch", is_small)
        assert set(trace.places.values()) == {"torch"}


def test_results_are_new_and_not_copied(torch: Any) -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None])
        y = (x + 1.0) * 2.0
        twice = [y, tf.identity(y), y * 1.0 + 0.0]
        session = tf.Session(framework="torch")
    log: list[Any] = []
    fed = torch.ones(2)
    found = session.run(y, {x: fed}, to="torch", receipts=log)
    assert all(each.shared for each in log)
    found.zero_()
    assert session.run(y, {x: fed}, to="torch").tolist() == [4, 4]
    first, second, third = session.run(twice, {x: fed}, to="torch")
    first.zero_()
    assert (second.tolist(), third.tolist()) == ([4, 4], [4, 4])
    assert fed.tolist() == [1, 1]


def test_runs_of_two_frameworks_with_control_dependencies(torch: Any) -> None:
    seen: list[float] = []
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [])
        y = (x + 1.0) * 2.0
        with tf.framework("numpy"):
            z = (y - 1.0) * 3.0
        with tf.control_dependencies([tf.py_func(lambda z: seen.append(float(z)), [z], [])]):
            w = (tf.cast(z, tf.float32) + y) / 2.0
        session = tf.Session(framework="torch")
        value = session.run(w, {x: 1.0})
    assert (value, seen) == (6.5, [9.0])
    assert type(value) is np.float32


def test_shapes_that_differ_give_a_value_of_its_own(torch: Any) -> None:
    with tf.Graph().as_default():
        x, y = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
        same = apply("Equal", (x, y), {"incompatible_shape_error": False}, None).outputs[0]
        either = tf.logical_or(same, same)
        session = tf.Session(framework="torch")
    feeds = {x: [1.0, 2.0], y: [1.0, 2.0, 3.0]}
    found, _ = session.run([same, either], feeds, to="torch")
    found.fill_(True)
    assert not session.run([same, either], feeds, to="torch")[0]


def test_errors_name_the_node(torch: Any) -> None:
    with tf.Graph().as_default():
        x, y = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
        z = tf.add(x * 2.0, y, name="sum")
        session = tf.Session(framework="torch")
    with pytest.raises(tf.errors.InvalidArgumentError, match="must match") as caught:
        session.run(z, {x: [1.0, 2.0], y: [1.0, 2.0, 3.0]})
    assert caught.value.op is z.op
