"""Every method of the public classes of graphs with one argument of a wrong type, each in turn.

As in test_wrong_types.py, for methods: whatever is refused is refused in the name of the method, by
an error that TensorFlow has for it, and what is wrong by its type alone names the argument.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.errors import DLBridgeError

CLUSTER = {"w": ["h:1"]}
Given = dict[str, Any]


def variable() -> Any:
    return tf.Variable([1.0, 2.0])


def queue() -> Any:
    return tf.FIFOQueue(3, ["float32"], [[2]])


def slices() -> Any:
    return tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))


def session() -> Any:
    made = tf.Session()
    made.run(tf.global_variables_initializer())
    return made


MAKERS: dict[str, Callable[[], Any]] = {
    "Graph": tf.get_default_graph,
    "Session": tf.Session,
    "Operation": lambda: tf.constant([1.0, 2.0]).op,
    "Tensor": lambda: tf.constant([1.0, 2.0]),
    "Variable": variable,
    "FIFOQueue": queue,
    "SparseTensor": lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
    "IndexedSlices": slices,
    "VariableScope": tf.get_variable_scope,
    "TensorShape": lambda: tf.TensorShape([2, None]),
    "DeviceSpec": lambda: tf.DeviceSpec(job="w"),
    "ClusterSpec": lambda: tf.train.ClusterSpec(CLUSTER),
}
C = lambda: tf.constant([1.0, 2.0])  # noqa: E731
SHAPE: Callable[[], Given] = lambda: {"other": [2, 3]}  # noqa: E731
KEY: Callable[[], Given] = lambda: {"name": "key"}  # noqa: E731
SCATTER: Callable[[], Given] = lambda: {"sparse_delta": slices()}  # noqa: E731
RIGHT: dict[str, Callable[[], Given]] = {
    "Graph.add_to_collection": lambda: {"name": "key", "value": 1},
    "Graph.add_to_collections": lambda: {"names": ["key"], "value": 1},
    "Graph.as_graph_element": lambda: {"obj": C()},
    "Graph.clear_collection": KEY,
    "Graph.get_collection": KEY,
    "Graph.get_collection_ref": KEY,
    "Graph.colocate_with": lambda: {"op": C()},
    "Graph.control_dependencies": lambda: {"control_inputs": [C()]},
    "Graph.create_op": lambda: {
        "op_type": "Neg", "inputs": [C()], "attrs": {"T": tf.float32}, "name": "neg"
    },
    "Graph.device": lambda: {"device_name_or_function": "/cpu:0"},
    "Graph.framework": lambda: {"name": "numpy"},
    "Graph.get_operation_by_name": lambda: {"name": C().op.name},
    "Graph.get_tensor_by_name": lambda: {"name": C().name},
    "Graph.is_feedable": lambda: {"tensor": C()},
    "Graph.is_fetchable": lambda: {"tensor_or_op": C()},
    "Graph.name_scope": lambda: {"name": "scope"},
    "Graph.prevent_feeding": lambda: {"tensor": C()},
    "Graph.prevent_fetching": lambda: {"op": C()},
    "Graph.unique_name": lambda: {"name": "a"},
    "Session.make_callable": lambda: {"fetches": C()},
    "Session.run": lambda: {"fetches": C()},
    "Session.state_of": lambda: {"variable": variable()},
    "Operation.get_attr": lambda: {"name": "dtype"},
    "Operation.run": lambda: {"session": tf.Session()},
    "Tensor.eval": lambda: {"session": tf.Session()},
    "Tensor.set_shape": lambda: {"shape": [2]},
    **dict.fromkeys(("Variable.assign",), lambda: {"value": [1.0, 2.0]}),
    **dict.fromkeys(
        ("Variable.assign_add", "Variable.assign_sub"), lambda: {"delta": [1.0, 2.0]}
    ),
    "Variable.load": lambda: {"value": [1.0, 2.0], "session": session()},
    "Variable.share": lambda: {"array": np.ones(2, "f4"), "session": session()},
    "Variable.scatter_add": SCATTER,
    "Variable.scatter_sub": SCATTER,
    "Variable.scatter_update": SCATTER,
    "Variable.scatter_nd_update": lambda: {"indices": [[0]], "updates": [1.0]},
    "Variable.sparse_read": lambda: {"indices": [0]},
    "Variable.state": lambda: {"session": session()},
    "Variable.eval": lambda: {"session": session()},
    "FIFOQueue.dequeue_many": lambda: {"n": 1},
    "FIFOQueue.dequeue_up_to": lambda: {"n": 1},
    "FIFOQueue.enqueue": lambda: {"vals": [[1.0, 2.0]]},
    "FIFOQueue.enqueue_many": lambda: {"vals": [[[1.0, 2.0]]]},
    "SparseTensor.eval": lambda: {"session": tf.Session()},
    "SparseTensor.with_values": lambda: {"values": [2.0]},
    "IndexedSlices.with_values": lambda: {"values": tf.constant([2.0])},
    "VariableScope.get_collection": KEY,
    "VariableScope.set_caching_device": lambda: {"caching_device": "/cpu:0"},
    "VariableScope.set_custom_getter": lambda: {"custom_getter": lambda getter, *a, **k: 1},
    "VariableScope.set_dtype": lambda: {"dtype": "float32"},
    "VariableScope.set_initializer": lambda: {"initializer": tf.zeros_initializer()},
    "VariableScope.set_partitioner": lambda: {"partitioner": lambda **k: [1]},
    "VariableScope.set_regularizer": lambda: {"regularizer": abs},
    "VariableScope.set_use_resource": lambda: {"use_resource": False},
    **dict.fromkeys(
        [f"TensorShape.{name}" for name in (
            "assert_is_compatible_with", "assert_same_rank", "concatenate", "is_compatible_with",
            "merge_with", "most_specific_compatible_shape")],
        SHAPE,
    ),
    **dict.fromkeys(
        [f"TensorShape.{name}" for name in (
            "assert_has_rank", "with_rank", "with_rank_at_least", "with_rank_at_most")],
        lambda: {"rank": 2},
    ),
    "DeviceSpec.make_merged_spec": lambda: {"inner": tf.DeviceSpec(job="v")},
    "ClusterSpec.job_tasks": lambda: {"job_name": "w"},
    "ClusterSpec.num_tasks": lambda: {"job_name": "w"},
    "ClusterSpec.task_indices": lambda: {"job_name": "w"},
    "ClusterSpec.task_address": lambda: {"job_name": "w", "task_index": 0},
}  # fmt: skip
# What rewriting of graphs calls, and what makes a TensorShape of a message's bytes.
LEFT_OUT = {
    "Graph.add", "Graph.insert", "Graph.operation_name", "Graph.to_dot", "TensorShape.from_record"
}  # fmt: skip
WRONG = [None, -7, "wrogn", ["a"], object(), 1.5, {}]


def methods() -> list[str]:
    """Return the methods with arguments, as "Graph.device"."""
    with tf.Graph().as_default():
        classes = {name: type(make()) for name, make in MAKERS.items()}
    return [
        f"{name}.{method}"
        for name, cls in classes.items()
        for method in dir(cls)
        if not method.startswith("_")
        and inspect.isfunction(getattr(cls, method))
        and len(inspect.signature(getattr(cls, method)).parameters) > 1
        and f"{name}.{method}" not in LEFT_OUT
    ]


METHODS = methods()


def call(name: str, wrong: Given | None = None) -> None:
    """Call a method of a new object, and enter the block that it returns."""
    owner, _, method = name.partition(".")
    bound = getattr(MAKERS[owner](), method)
    made = bound(**{**RIGHT.get(name, dict)(), **(wrong or {})})
    if hasattr(made, "__enter__"):
        with made:
            pass


def stated(name: str) -> str:
    """Return how else a refusal may begin: TensorFlow's words say which shapes do not fit."""
    return r"TensorShape(\.\w+)?: |Shapes? \(" if name.startswith("TensorShape.") else "$^"


def judged(name: str, argument: str, wrong: object) -> str | None:
    """Return what is wrong with the answer to a call with one wrong argument, None for nothing."""
    with tf.Graph().as_default():
        try:
            call(name, {argument: wrong})
        except (TypeError, ValueError, LookupError, DLBridgeError) as error:
            text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
            if not re.match(rf"({name}|{name.partition('.')[2]}): |{stated(name)}", text):
                return f"does not name the call: {type(error).__name__}: {text}"
            named = re.search(rf"{argument}|{stated(name)}|feed_dict key", text)
            if isinstance(error, TypeError) and not named:
                return f"does not name the argument: {text}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("name", METHODS)
def test_one_argument_of_a_wrong_type_is_refused_by_its_name_or_taken(name: str) -> None:
    with tf.Graph().as_default():
        call(name)
    owner, _, method = name.partition(".")
    with tf.Graph().as_default():
        parameters = [*inspect.signature(getattr(type(MAKERS[owner]()), method)).parameters][1:]
    answers = {
        f"{name}({argument}={wrong!r})": judged(name, argument, wrong)
        for argument in parameters
        for wrong in WRONG
    }
    found = [f"{call}: {answer}" for call, answer in answers.items() if answer is not None]
    assert not found, "\n".join(found)
