"""ConfigProto, RunOptions and RunMetadata: TensorFlow's fields, defaults and refusals."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
from measuring import pause, wall_clock

import dlbridge.graph as tf

CLASSES = ("ConfigProto", "GPUOptions", "RunOptions", "RunMetadata")


@pytest.fixture
def v1(framework) -> Any:
    return framework("tensorflow").compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as made:
        yield made


def slow(seconds: float) -> tf.Tensor:
    def wait() -> np.float64:
        pause(seconds)
        return np.float64(1.0)

    return tf.py_func(wait, [], tf.float64)


# ---- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_fields_and_defaults_are_tensorflows(name: str, v1) -> None:
    ours, theirs = getattr(tf, name)(), getattr(v1, name)()
    for field, value in vars(ours).items():
        wanted = getattr(theirs, field)
        if isinstance(value, dict | bool | int | float | str):
            assert value == (dict(wanted) if isinstance(value, dict) else wanted), field


def test_levels_of_a_trace_are_tensorflows(v1) -> None:
    for name in ("NO_TRACE", "SOFTWARE_TRACE", "HARDWARE_TRACE", "FULL_TRACE"):
        assert getattr(tf.RunOptions, name) == getattr(v1.RunOptions, name)


@pytest.mark.parametrize(
    "refused",
    [
        lambda tf: tf.ConfigProto(nope=1),
        lambda tf: tf.ConfigProto(allow_soft_placement="x"),
        lambda tf: tf.ConfigProto(intra_op_parallelism_threads=1.5),
        lambda tf: tf.ConfigProto(gpu_options=3),
        lambda tf: setattr(tf.RunOptions(), "nope", 1),
        lambda tf: setattr(tf.ConfigProto(), "gpu_options", tf.GPUOptions()),
        lambda tf: setattr(tf.GPUOptions(), "allocator_type", 1),
        lambda tf: hash(tf.RunOptions()),
    ],
)
def test_fields_are_refused_with_tensorflows_errors(refused, v1) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)) as theirs:
        refused(v1)
    with pytest.raises(theirs.type):
        refused(tf)


def test_a_config_is_made_changed_and_compared() -> None:
    config = tf.ConfigProto(device_count={"CPU": 1}, gpu_options=tf.GPUOptions(allow_growth=True))
    config.gpu_options.per_process_gpu_memory_fraction = 1
    config.allow_soft_placement = 1
    assert config.allow_soft_placement is True
    assert config.gpu_options.per_process_gpu_memory_fraction == 1.0
    assert config == tf.ConfigProto(
        allow_soft_placement=True,
        device_count={"CPU": 1},
        gpu_options=tf.GPUOptions(allow_growth=True, per_process_gpu_memory_fraction=1.0),
    )
    assert config != tf.ConfigProto()
    assert tf.ConfigProto().gpu_options.allow_growth is False
    assert repr(tf.RunOptions(timeout_in_ms=3)) == "RunOptions(timeout_in_ms=3)"


# ---- sessions ----------------------------------------------------------------------------------


def test_a_session_takes_a_config_of_either_package(graph, v1) -> None:
    with tf.device("/gpu:7"):
        x = tf.constant(1.0) + 1.0
    for config in (None, tf.ConfigProto(), v1.ConfigProto()):
        with tf.Session(config=config) as session, pytest.raises(tf.errors.InvalidArgumentError):
            session.run(x)
    for package in (tf, v1):
        with tf.Session(config=package.ConfigProto(allow_soft_placement=True)) as session:
            assert session.run(x) == 2.0


def test_a_session_refuses_what_is_no_config_and_limits_on_devices(graph, v1) -> None:
    text = 'Argument `config` must be a tf.ConfigProto, but got "int"'
    with pytest.raises(TypeError, match=re.escape(text)):
        tf.Session(config=3)
    with pytest.raises(ValueError, match="limits GPU to 0, which is not supported"):
        tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))
    tf.Session(config=v1.ConfigProto(device_count={"CPU": 2})).close()


# ---- runs --------------------------------------------------------------------------------------


def test_a_traced_run_fills_its_metadata(graph) -> None:
    x = tf.placeholder(tf.float32, [2], "x")
    y = tf.add(x, 1.0, name="y")
    metadata = tf.RunMetadata()
    before = wall_clock()
    with tf.Session() as session:
        session.run(y, {x: [1, 2]}, run_metadata=metadata)
        session.run(y, {x: [1, 2]}, tf.RunOptions(), metadata)
        assert metadata == tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        for _ in range(2):
            assert session.run(y, {x: [1, 2]}, options, metadata).tolist() == [2, 3]
        assert session.trace is None
    (device,) = metadata.step_stats.dev_stats
    assert device.device == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert [each.node_name for each in device.node_stats] == ["feed x", "y", "fetch y"]
    stats = device.node_stats[1]
    assert stats.timeline_label == "y = Add()" or stats.timeline_label == "y = AddV2()"
    assert before < stats.all_start_nanos < wall_clock()
    assert stats.all_start_micros == stats.all_start_nanos // 1000
    assert 0 < stats.op_end_rel_nanos <= stats.all_end_rel_nanos
    starts = [each.all_start_nanos for each in device.node_stats]
    assert starts == sorted(starts)


def test_fields_of_step_stats_are_tensorflows(v1) -> None:
    from tensorflow.core.framework import step_stats_pb2

    from dlbridge.graph.session import config

    for name in ("StepStats", "DeviceStepStats", "NodeExecStats"):
        theirs = getattr(step_stats_pb2, name).DESCRIPTOR.fields_by_name
        assert set(getattr(config, name)._fields) <= set(theirs)


def test_options_may_be_tensorflows(graph, v1) -> None:
    metadata = tf.RunMetadata()
    x = tf.constant(1.0) + 1.0
    with tf.Session() as session:
        session.run(x)
        session.run(x, options=v1.RunOptions(trace_level=3), run_metadata=metadata)
        assert metadata.step_stats.dev_stats
        with pytest.raises(TypeError, match="options must be"):
            session.run(x, options=3)
        with pytest.raises(TypeError, match="run_metadata must be"):
            session.run(x, options=tf.RunOptions(), run_metadata=3)


@pytest.mark.parametrize("package", ["ours", "theirs"])
def test_a_run_times_out(package: str, graph, v1) -> None:
    module = tf if package == "ours" else v1
    y = slow(0.2)
    with tf.Session() as session:
        with pytest.raises(tf.errors.DeadlineExceededError, match="timed out after 50 ms"):
            session.run(y, options=module.RunOptions(timeout_in_ms=50))
        assert session.run(y, options=module.RunOptions(timeout_in_ms=60_000)) == 1.0
        assert session.run(y) == 1.0
    with tf.Session(config=module.ConfigProto(operation_timeout_in_ms=50)) as session:
        for _ in range(2):
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(y)
        assert session.run(y, options=module.RunOptions(timeout_in_ms=60_000)) == 1.0


def test_a_run_that_is_late_makes_no_further_step(graph) -> None:
    made = []

    def later(x: Any) -> Any:
        made.append(x)
        return x

    x = tf.call(later, [slow(0.2)], tf.float64)
    with tf.Session() as session:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(x, options=tf.RunOptions(timeout_in_ms=50))
        assert not made
        session.run(x, options=tf.RunOptions(timeout_in_ms=60_000))
        assert made


def test_the_steps_of_a_run_with_a_timeout_stay_in_c(graph) -> None:
    """The functions of Python that it enters beside those of a plain run are not more for more."""

    def entered(y: Any, options: Any) -> int:
        count = 0

        def note(frame: Any, event: str, _: Any) -> None:
            nonlocal count
            count += event == "call"

        with tf.Session() as session:
            session.run(y, {x: [1.0, 2.0]}, options=options)
            sys.setprofile(note)
            try:
                session.run(y, {x: [1.0, 2.0]}, options=options)
            finally:
                sys.setprofile(None)
        return count

    x = y = tf.placeholder(tf.float32, [2])
    few = tf.reshape(x, [2, 1])
    for _ in range(50):
        y = tf.reshape(tf.reshape(y, [2, 1]), [2])
    timed, plain = tf.RunOptions(timeout_in_ms=60_000), tf.RunOptions()
    assert entered(y, timed) - entered(y, plain) == entered(few, timed) - entered(few, plain)


def test_a_run_with_a_timeout_is_traced_as_asked(graph) -> None:
    x = tf.constant(1.0) + 1.0
    options, metadata = tf.RunOptions(timeout_in_ms=60_000, trace_level=3), tf.RunMetadata()
    with tf.Session() as session:
        trace = tf.Trace()
        session.run(x)
        session.run(x, options=options, run_metadata=metadata, trace=trace)
        assert [each["name"] for each in trace.events] == ["add", "fetch add"]
        assert trace.places
        assert len(metadata.step_stats.dev_stats[0].node_stats) == 2


def test_a_fetch_that_ran_before_is_still_traced(graph) -> None:
    x = tf.constant(1.0) + 1.0
    with tf.Session() as session:
        session.run(x)
        session.run(x, trace=True)
        assert session.trace is not None
        assert session.trace.events
