"""Graph sessions on devices: nothing out of order, and the host waits only where it needs a value.

CuPy is the stand-in, whose every operation the fake driver sees on its stream.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any, Self

import cupy
import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge.execution.errors import InvalidArgumentError, ResourceExhaustedError

ONES = np.ones((2, 3), np.float32)


@pytest.fixture(autouse=True)
def graph(machine: Any) -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


class Waits:
    """Counts how often the host waits within a block."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine

    def __enter__(self) -> Self:
        self.before = self.machine.host_waits
        return self

    def __exit__(self, *details: object) -> None:
        self.count = self.machine.host_waits - self.before


def on(device: str) -> Any:
    return tf.device(f"/device:{device}")


def two_devices() -> tuple[Any, Any, Any]:
    x = tf.placeholder(tf.float32, [None, 3])
    with on("GPU:0"):
        y = x * 2 + 1
    with on("GPU:1"):
        z = tf.matmul(y, tf.constant(np.eye(3, dtype=np.float32)))
    return x, y, z


# ---- placement -----------------------------------------------------------------------------------


def test_nodes_run_on_the_devices_that_they_ask_for() -> None:
    x, y, z = two_devices()
    with tf.Session(framework="cupy") as session:
        found = session.run([y, z], {x: ONES}, to="cupy")
        assert [each.device.id for each in found] == [0, 1]
        assert found[0].get().tolist() == (ONES * 3).tolist()
        with cupy.cuda.Device(1):
            assert found[1].get().tolist() == (ONES * 3).tolist()


def test_a_session_of_numpy_runs_what_asks_for_a_gpu_in_cupy() -> None:
    x, y, z = two_devices()
    w = z - 1
    with tf.Session() as session:
        trace = tf.Trace()
        assert session.run(w, {x: ONES}, trace=trace).tolist() == (ONES * 2).tolist()
    assert trace.places[y.op] == trace.places[z.op] == "cupy"
    assert trace.places[w.op] == "numpy"
    assert trace.devices == {y.op.inputs[0].op: "GPU:0", y.op: "GPU:0", z.op: "GPU:1"}


def test_a_session_of_cupy_runs_what_asks_for_the_cpu_in_numpy() -> None:
    with on("CPU:0"):
        y = tf.placeholder(tf.float32, [3], name="x") + 1.0
    with tf.Session(framework="cupy") as session:
        trace = tf.Trace()
        session.run(y, {"x:0": ONES[0]}, trace=trace)
    assert trace.places[y.op] == "numpy"


def test_the_current_device_of_the_caller_changes_nothing() -> None:
    y = tf.constant(ONES) * 2
    with tf.Session(framework="cupy") as session, cupy.cuda.Device(1):
        assert session.run(y, to="cupy").device.id == 0
        assert cupy.cuda.runtime.getDevice() == 1
    assert cupy.cuda.runtime.getDevice() == 0


@pytest.mark.parametrize("framework", ["numpy", "cupy"])
def test_a_missing_device_is_told(framework: str) -> None:
    with on("GPU:7"):
        y = tf.constant(1.0) + 1.0
    with tf.Session(framework=framework) as session:
        with pytest.raises(InvalidArgumentError, match="/device:GPU:7") as caught:
            session.run(y)
        has = {"numpy": "/device:CPU:0", "cupy": "/device:GPU:0, /device:GPU:1"}[framework]
        assert has in str(caught.value)


@pytest.mark.parametrize("framework", ["numpy", "cupy"])
def test_soft_placement_takes_another_device(framework: str) -> None:
    class Config:
        allow_soft_placement = True

    with on("GPU:7"):
        y = tf.constant(1.0) + 1.0
    with tf.Session(framework=framework, config=Config()) as session:
        assert session.run(y) == 2


def test_places_are_written_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    class Config:
        log_device_placement = True

    with on("GPU:1"):
        y = tf.add(tf.placeholder(tf.float32, [], name="x"), 1.0, name="sum")
    z = y.op.inputs[0] * 2
    with tf.Session(config=Config()) as session:
        for _ in range(2):
            session.run([y, z], {"x:0": 1.0})
    lines = capsys.readouterr().err.splitlines()
    place = "/job:localhost/replica:0/task:0/device"
    assert lines.count(f"sum: (AddV2): {place}:GPU:1 in cupy") == 1
    assert f"{z.op.name}: (Mul): {place}:CPU:0 in numpy" in lines


def test_strings_stay_on_the_host() -> None:
    x = tf.constant(["a", "b"])
    with tf.Session(framework="cupy") as session:
        assert session.run(tf.shape(x)).tolist() == [2]
        assert session.run(x).tolist() == [b"a", b"b"]


# ---- waiting -------------------------------------------------------------------------------------


def test_a_run_waits_only_for_what_the_host_needs(machine: Any) -> None:
    x, y, z = two_devices()
    with tf.Session(framework="cupy") as session:
        session.run([y, z], {x: ONES}, to="cupy")
        with Waits(machine) as none:
            kept = session.run([y, z], {x: ONES}, to="cupy")
        assert none.count == 0
        with Waits(machine) as two:
            session.run([y, z], {x: ONES})
        assert two.count == 2
        del kept


def test_a_shape_is_computed_on_the_host(machine: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    y = tf.reshape(x * 2, [tf.shape(x)[0] * 3])
    with tf.Session(framework="cupy") as session:
        with Waits(machine) as none:
            found = session.run(y, {x: ONES}, to="cupy")
        assert none.count == 0
        assert found.shape == (6,)


def test_values_are_not_looked_at(machine: Any) -> None:
    """As on TensorFlow's GPUs: what is out of range gives zeros, or is left out."""
    at = tf.placeholder(tf.int32, [None])
    table = tf.constant([1.0, 2.0, 3.0])
    results = [
        tf.gather(table, at),
        tf.gather_nd(table, at[:, None]),
        tf.scatter_nd(at[:, None], tf.cast(at, tf.float32), [3]),
        tf.floordiv(tf.constant([4, 4, 4]), tf.constant([2, 1, 4])),
    ]
    with tf.Session(framework="cupy") as session:
        fed = cupy.asarray(np.array([1, 5, -1], np.int32))
        with Waits(machine) as none:
            found = session.run(results, {at: fed}, to="cupy")
        assert none.count == 0
    values = [each.get().tolist() for each in found]
    assert values == [[2, 0, 0], [2, 0, 0], [0, 1, 0], [2, 4, 1]]


# ---- streams -------------------------------------------------------------------------------------


def test_a_run_is_on_the_callers_stream(machine: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    y = tf.reduce_sum(x * 2)
    stream = cupy.cuda.Stream(non_blocking=True)
    with tf.Session(framework="cupy") as session:
        session.run(y, {x: ONES})
        with stream:
            fed = cupy.asarray(ONES)
            with Waits(machine) as none:
                found = session.run(y, {x: fed}, to="cupy")
            fed[...] = 0  # in order after what the run reads
            assert none.count == 0
            assert float(found) == 12.0
            del fed, found


def test_a_fed_array_may_be_written_to_afterwards(machine: Any) -> None:
    """Also where another device has read it: the writer's stream waits for that one."""
    x, _, z = two_devices()
    with on("GPU:1"):
        direct = x + 1
    with tf.Session(framework="cupy") as session:
        fed = cupy.asarray(ONES)
        found = session.run([z, direct], {x: fed}, to="cupy")
        fed += 1
        with cupy.cuda.Device(1):
            assert [each.get()[0, 0] for each in found] == [3.0, 2.0]
    assert machine.faults == []


def test_threads_run_on_streams_of_their_own(machine: Any) -> None:
    x, y, z = two_devices()
    errors: list[Exception] = []
    session = tf.Session(framework="cupy")
    session.run([y, z], {x: ONES})

    def work(factor: float) -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True):
                for _ in range(5):
                    found = session.run([y, z], {x: ONES * np.float32(factor)})
                    assert found[1][0, 0] == 2 * factor + 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    session.close()


# ---- in and out ----------------------------------------------------------------------------------


def test_memory_on_a_device_is_shared_with_the_run() -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    seen: list[int] = []

    def look(value: Any) -> Any:
        seen.append(value.data.ptr)
        return value + 1

    y = tf.call(look, [x], tf.float32, framework="cupy")
    with tf.Session(framework="cupy") as session:
        fed = cupy.asarray(ONES)
        session.run(y, {x: fed})
        assert seen == [fed.data.ptr]
        session.run(y, {x: dlbridge.from_dlpack(fed)})
        assert seen == [fed.data.ptr] * 2


def test_results_come_in_the_framework_asked_for(machine: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    y = x * 2
    with tf.Session(framework="cupy") as session:
        assert isinstance(session.run(y, {x: ONES}), np.ndarray)
        with Waits(machine) as none:
            tensor = session.run(y, {x: ONES}, to="dlbridge")
        assert none.count == 0
        assert str(tensor.device) == "cuda:0"
        assert tensor.to("cpu").tolist() == (ONES * 2).tolist()


def test_a_copy_is_the_callers_own() -> None:
    v = tf.Variable(np.zeros(3, np.float32))
    with tf.Session(framework="cupy") as session:
        session.run(tf.global_variables_initializer())
        mine = session.run(v, to="cupy")
        mine += 1
        assert session.run(v).tolist() == [0, 0, 0]
        shared = session.run(v, to="cupy", copy=False)
        assert shared.data.ptr != mine.data.ptr


def test_a_value_crosses_once_for_each_place() -> None:
    x, y, _ = two_devices()
    with on("GPU:1"):
        results = [y + 1, y * 2, y - 3]
    log: list[Any] = []
    with tf.Session(framework="cupy") as session:
        trace = tf.Trace()
        session.run(results, {x: ONES}, trace=trace, receipts=log)
    moves = [each["name"] for each in trace.events if each["cat"] == "move"]
    assert len([each for each in moves if each.startswith("cupy GPU:0 -> cupy GPU:1")]) == 1
    assert {each["tid"] for each in trace.events} >= {"cupy GPU:0", "cupy GPU:1"}
    (crossing,) = trace.crossings[y]
    assert (crossing.target, crossing.shared, crossing.why) == ("cupy", False, "device")
    assert any(each.why == "device" for each in log)


# ---- variables -----------------------------------------------------------------------------------


def test_variables_live_where_they_are_written(machine: Any) -> None:
    with on("GPU:1"):
        v = tf.Variable(np.zeros(3, np.float32))
        add = tf.assign_add(v, [1.0, 2.0, 3.0])
    twice = v.value() * 2
    with tf.Session(framework="cupy") as session:
        session.run(tf.global_variables_initializer())
        session.run(add.op)
        with Waits(machine) as none:
            for _ in range(3):
                session.run(add.op)
        assert none.count == 0
        assert session.state_of(v).value.device.id == 1
        assert session.run(twice).tolist() == [8, 16, 24]
        assert session.run(v).tolist() == [4, 8, 12]


def test_memory_that_a_variable_shares_is_written_in_order(machine: Any) -> None:
    v = tf.Variable(np.zeros(3, np.float32))
    add = tf.assign_add(v, [1.0, 1.0, 1.0])
    with tf.Session(framework="cupy") as session:
        session.run(tf.global_variables_initializer())
        mine = cupy.zeros(3, np.float32)
        session.state_of(v).share(mine)
        session.run(add.op)
        session.run(add.op)
        assert mine.get().tolist() == [2, 2, 2]
        mine[...] = 5
        assert session.run(v).tolist() == [5, 5, 5]


def test_scattered_updates() -> None:
    v = tf.Variable(np.zeros((3, 2), np.float32))
    add = tf.scatter_add(v, [1, 1], np.ones((2, 2), np.float32))
    with tf.Session(framework="cupy") as session:
        session.run(tf.global_variables_initializer())
        session.run(add)
        assert session.run(v).tolist() == [[0, 0], [2, 2], [0, 0]]


# ---- functions -----------------------------------------------------------------------------------


def test_a_function_runs_with_its_device_as_the_current_one() -> None:
    seen: list[tuple[int, int]] = []

    def fill(x: Any) -> Any:
        seen.append((cupy.cuda.runtime.getDevice(), x.device.id))
        return cupy.full(x.shape, 7, np.float32)

    with on("GPU:1"):
        y = tf.call(fill, [tf.constant(ONES)], tf.float32, framework="cupy")
    with tf.Session(framework="cupy") as session:
        assert session.run(y).tolist() == (ONES * 7).tolist()
    assert seen == [(1, 1)]


def test_a_wrapped_gpu_kernel_is_a_node(machine: Any) -> None:
    """It is launched on the device and stream of its node."""
    raw = cupy.RawKernel(
        'extern "C" __global__ void add_one(const float *x, float *out, long long n) {}', "add_one"
    )
    add_one = dlbridge.wrap(
        raw,
        "tests::graph_add_one(x: float32[n]) -> float32[n]",
        abi="void(const float *x, float *out, int64_t n)",
        grid="(n + 255) // 256",
        block=256,
    )
    x = tf.placeholder(tf.float32, [None])
    with on("GPU:0"):
        y = tf.call(add_one, [x * 2], framework="cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    with tf.Session(framework="cupy") as session:
        session.run(y, {x: ONES[0]})
        with stream:
            with Waits(machine) as none:
                found = session.run(y, {x: ONES[0]}, to="cupy")
            assert none.count == 0
            assert found.get().tolist() == [3.0, 3.0, 3.0]
            del found


def test_errors_of_a_kernel_name_the_operation() -> None:
    x = tf.placeholder(tf.float32, None)
    y = tf.matmul(x, x, name="product")
    with tf.Session(framework="cupy") as session:
        with pytest.raises(InvalidArgumentError) as caught:
            session.run(y, {x: ONES})
        assert caught.value.op.name == "product"


def test_a_device_without_memory_is_told(machine: Any) -> None:
    x = tf.placeholder(tf.float32, [None])
    y = x + 1
    with tf.Session(framework="cupy") as session:
        fed = cupy.zeros(1 << 20, np.float32)
        machine.driver.fake_fail(b"cuMemAlloc", 2, 0, 1000)
        try:
            with pytest.raises(ResourceExhaustedError, match="Out of memory") as caught:
                session.run(y, {x: fed}, to="cupy")
        finally:
            machine.driver.fake_fail(b"cuMemAlloc", 2, 0, 0)
        assert caught.value.op is y.op
        assert session.run(y, {x: fed})[0] == 1


def test_runs_leave_nothing_behind(machine: Any) -> None:
    x, y, z = two_devices()
    with tf.Session(framework="cupy") as session:
        for _ in range(3):
            session.run([y, z], {x: ONES})
        gc.collect()
        used = cupy.cuda.memory._DEFAULT.used_bytes()
        for _ in range(20):
            session.run([y, z], {x: ONES})
        gc.collect()
        assert cupy.cuda.memory._DEFAULT.used_bytes() == used
