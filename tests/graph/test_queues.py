"""`tf.FIFOQueue` in a local session; between tasks it is tested in test_server.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph.core.default_graph import apply


@pytest.fixture
def session() -> Iterator[Any]:
    with tf.Graph().as_default(), tf.Session() as made:
        yield made


def outcomes(tf: Any, steps: Callable[[Any], list[Any]]) -> list[Any]:
    """Return what each step gives: values as lists, or the name of an error's class."""
    found: list[Any] = []
    with tf.Graph().as_default(), tf.Session() as session:
        for fetch in steps(tf):
            try:
                value = session.run(fetch)
            except tf.errors.OpError as error:
                value = type(error).__name__
            if isinstance(value, list | tuple):
                found.append([np.asarray(each).tolist() for each in value])
            else:
                found.append(value if isinstance(value, str) else np.asarray(value).tolist())
    return found


def rows(tf: Any) -> list[Any]:
    queue = tf.FIFOQueue(20, [tf.float32, tf.string], shapes=[[2], []])
    many = queue.enqueue_many([np.arange(12, dtype="f4").reshape(6, 2), list("abcdef")])
    return [
        many, queue.size(), queue.dequeue(), queue.dequeue_many(2), queue.dequeue_many(0),
        queue.enqueue([[7.0, 8.0], "g"]), queue.is_closed(), queue.close(), queue.is_closed(),
        queue.enqueue([[7.0, 8.0], "g"]), queue.dequeue_many(5), queue.size(),
        queue.dequeue_up_to(9), queue.dequeue_up_to(9), queue.dequeue(), queue.close(),
    ]  # fmt: skip


def any_shape(tf: Any) -> list[Any]:
    queue = tf.FIFOQueue(3, tf.int32)
    steps = [queue.enqueue([[1, 2]]), queue.enqueue(3), queue.dequeue(), queue.dequeue()]
    return [*steps, queue.dequeue_many(1), queue.enqueue_many([[1, 2]])]


def shared(tf: Any) -> list[Any]:
    one = tf.FIFOQueue(3, tf.int32, [()], shared_name="shared")
    other = tf.FIFOQueue(3, tf.int32, [()], shared_name="shared")
    return [one.enqueue(4), other.size(), other.dequeue(), one.size()]


@pytest.mark.parametrize("steps", [rows, any_shape, shared])
def test_a_queue_does_what_tensorflows_does(steps: Any, framework: Any) -> None:
    framework("tensorflow")
    import tensorflow.compat.v1 as theirs

    assert outcomes(tf, steps) == outcomes(theirs, steps)


def test_elements_come_in_order_and_keep_their_values(session: Any) -> None:
    queue = tf.FIFOQueue(5, tf.float64, shapes=[[2]])
    x = tf.placeholder(tf.float64, [2])
    fed = np.array([1.0, 2.0])
    put = queue.enqueue(x)
    session.run(put, {x: fed})
    fed[:] = 0.0  # the queue has a copy
    session.run(put, {x: fed})
    first = queue.dequeue()
    assert first.shape.as_list() == [2]
    assert session.run(first).tolist() == [1.0, 2.0]
    assert session.run(first).tolist() == [0.0, 0.0]


def test_names_make_elements_dicts(session: Any) -> None:
    queue = tf.FIFOQueue(5, [tf.int32, tf.float32], names=["n", "x"])
    session.run(queue.enqueue({"x": 0.5, "n": 3}))
    assert session.run(queue.dequeue()) == {"n": 3, "x": 0.5}
    with pytest.raises(ValueError, match="an element is a dict by name"):
        queue.enqueue([3, 0.5])


def test_a_run_waits_for_elements_and_another_for_room(session: Any) -> None:
    queue = tf.FIFOQueue(1, tf.int32, [()])
    x = tf.placeholder(tf.int32, [])
    put, first = queue.enqueue(x), queue.dequeue()
    got: list[int] = []
    taker = threading.Thread(target=lambda: got.extend(session.run(first) for _ in range(20)))
    taker.start()
    for i in range(20):
        session.run(put, {x: i})
    taker.join()
    assert got == list(range(20))


def test_more_elements_than_the_queue_holds_are_dequeued_together(session: Any) -> None:
    queue = tf.FIFOQueue(2, tf.int32, [()])
    putter = threading.Thread(target=session.run, args=(queue.enqueue_many([list(range(7))]),))
    putter.start()
    assert session.run(queue.dequeue_many(7)).tolist() == list(range(7))
    putter.join()


def test_a_timeout_ends_the_wait_and_gives_back_what_was_taken(session: Any) -> None:
    queue = tf.FIFOQueue(4, tf.int32, [()])
    session.run(queue.enqueue_many([[1, 2]]))
    soon = tf.RunOptions(timeout_in_ms=30)
    with pytest.raises(tf.errors.DeadlineExceededError):
        session.run(queue.dequeue_many(3), options=soon)
    with pytest.raises(tf.errors.DeadlineExceededError):
        session.run(queue.enqueue_many([[3, 4, 5]]), options=soon)
    assert session.run(queue.dequeue_many(4)).tolist() == [1, 2, 3, 4]


def test_the_timeout_of_a_run_limits_runs_nested_in_it(session: Any) -> None:
    queue = tf.FIFOQueue(1, tf.float32, [()])
    first = queue.dequeue()

    def wait(x: Any) -> Any:
        return session.run(first, options=tf.RunOptions(timeout_in_ms=10**9))

    outer = tf.py_func(wait, [tf.constant(1.0)], tf.float32)
    with pytest.raises(tf.errors.OpError, match="timed out after 50 ms"):
        session.run(outer, options=tf.RunOptions(timeout_in_ms=50))


def test_a_closed_session_ends_the_waits_of_its_runs() -> None:
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(1, tf.int32, [()])
        first, size = queue.dequeue(), queue.size()
        session = tf.Session()
        session.run(size)
        errors: list[Any] = []

        def wait() -> None:
            try:
                session.run(first)
            except (tf.errors.CancelledError, RuntimeError) as error:
                errors.append(error)  # RuntimeError: it was closed before the run began

        taker = threading.Thread(target=wait)
        taker.start()
        session.close()
        taker.join()
        assert len(errors) == 1


def test_close_may_cancel_what_waits_for_room(session: Any) -> None:
    queue = tf.FIFOQueue(1, tf.int32, [()])
    session.run(queue.enqueue(1))
    put, close = queue.enqueue(2), queue.close(cancel_pending_enqueues=True)
    errors: list[Any] = []

    def wait() -> None:
        with pytest.raises(tf.errors.CancelledError) as caught:
            session.run(put)
        errors.append(caught)

    putter = threading.Thread(target=wait)
    putter.start()
    session.run(close)
    putter.join()
    assert len(errors) == 1
    assert session.run(queue.dequeue()) == 1


def test_wrong_elements_are_refused(session: Any) -> None:
    queue = tf.FIFOQueue(1, tf.int32, [[2]])
    x = tf.placeholder(tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"component 0\. Expected \[2\]"):
        session.run(queue.enqueue(x), {x: [1, 2, 3]})
    with pytest.raises(ValueError, match="has 1 components, got 2"):
        queue.enqueue([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="1 shapes are required"):
        tf.FIFOQueue(1, tf.int32, [[2], [3]])
    other = tf.FIFOQueue(2, tf.int32, [[2]], shared_name=queue.name)
    session.run(queue.size())
    with pytest.raises(tf.errors.InvalidArgumentError, match="capacity 1"):
        session.run(other.size())


def test_handles_of_queues_and_of_variables_are_told_apart() -> None:
    """A graph that is read may give either operation the handle of the other."""
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.FIFOQueue(2, tf.float32, shapes=[()])
        variable = tf.get_variable("v", [], tf.float32, use_resource=True)
        session.run(variable.initializer)
        size = apply("QueueSizeV2", (variable.handle,), {}).outputs[0]
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be that of a queue"):
            session.run(size)
        read = apply("ReadVariableOp", (queue.queue_ref,), {"dtype": tf.float32}).outputs[0]
        with pytest.raises(tf.errors.InvalidArgumentError, match="an operation on variables"):
            session.run(read)
