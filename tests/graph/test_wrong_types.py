"""Every public function of dlbridge.graph with one argument of a wrong type, each in turn.

A call that is right is found by trying values, or stands in `RIGHT`. Then one argument after the
other is replaced by values of several types. Whatever is refused is refused by an error that
TensorFlow has for it, in the name of the function; what is wrong by its type alone names the
argument as well, never only what Python says of a value deep within.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from graph.public_functions import CALLED, MODULES, PUBLIC, name_in_refusals

import dlbridge.graph as tf
from dlbridge.errors import DLBridgeError

VALUES: list[Callable[[], Any]] = [
    lambda: tf.constant([[1.0, 2.0], [3.0, 4.0]]),
    lambda: tf.constant([1, 2]),
    lambda: tf.constant(1),
    lambda: tf.constant(["a", "b"]),
    lambda: tf.constant([True, False]),
    lambda: [tf.constant([1.0, 2.0])] * 2,
    lambda: 1,
    lambda: "float32",
    lambda: [1, 1],
    lambda: tf.constant(np.ones((1, 4, 4, 2), "f4")),
    lambda: tf.Variable([1.0, 2.0]),
    lambda: lambda *given: given,
    lambda: ["a"],
    lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
]
MOST_TRIES = 700


def ones(*shape: int) -> Any:
    return tf.constant(np.ones(shape, "f4"))


def definition() -> Any:
    return tf.get_default_graph().as_graph_def()


CLUSTER = {"ps": ["host:1"], "worker": ["host:2"]}
BLOCKS = {"block_shape": [2, 2], "crops": [[0, 0], [0, 0]]}
PADDED = {"block_shape": [2, 2], "paddings": [[0, 0], [0, 0]]}
COLLECTIVE = {"group_size": 2, "group_key": 1, "instance_key": 1}
IMAGES = {"input": (1, 4, 4, 2), "filter": (2, 2, 2, 3)}
CONV = {"strides": [1, 1, 1, 1], "padding": "SAME"}
POOL = {"ksize": 2, "strides": 1, "padding": "SAME"}


def images(**more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {name: ones(*shape) for name, shape in IMAGES.items()} | more


RIGHT: dict[str, Callable[[], dict[str, Any]]] = {
    "Assert": lambda: {"condition": tf.constant(True), "data": [tf.constant(1)]},
    "SparseTensor": lambda: {"indices": [[0, 0]], "values": [1.0], "dense_shape": [2, 2]},
    "batch_to_space": lambda: {
        "input": ones(4, 1, 1, 1), "crops": BLOCKS["crops"], "block_size": 2
    },
    "batch_to_space_nd": lambda: {"input": ones(4, 1, 1, 1), **BLOCKS},
    "space_to_batch": lambda: {
        "input": ones(1, 2, 2, 1), "paddings": PADDED["paddings"], "block_size": 2
    },
    "space_to_batch_nd": lambda: {"input": ones(1, 2, 2, 1), **PADDED},
    "depth_to_space": lambda: {"input": ones(1, 2, 2, 4), "block_size": 2},
    "space_to_depth": lambda: {"input": ones(1, 2, 2, 4), "block_size": 2},
    "cross": lambda: {"a": ones(3), "b": ones(3)},
    "dump_graph": lambda: {"graph": tf.get_default_graph()},
    "dump_graph_buffers": lambda: {"graph": tf.get_default_graph()},
    "decode_raw": lambda: {"input_bytes": tf.constant(["aa"]), "out_type": "uint8"},
    "linspace": lambda: {"start": 0.0, "stop": 1.0, "num": 3},
    "ensure_shape": lambda: {"x": ones(2), "shape": [2]},
    "placeholder_with_default": lambda: {"input": ones(2), "shape": [2]},
    "name_scope": lambda: {"name": "scope"},
    "py_func": lambda: {"func": abs, "inp": [ones(2)], "Tout": ["float32"]},
    "bias_add": lambda: {"value": ones(2, 3), "bias": ones(3)},
    "numpy_function": lambda: {"func": abs, "inp": [ones(2)], "Tout": ["float32"]},
    **dict.fromkeys(("avg_pool", "max_pool"), lambda: {"value": ones(1, 4, 4, 2), **POOL}),
    "conv1d": lambda: {
        "value": ones(1, 4, 2), "filters": ones(2, 2, 3), "stride": 1, "padding": "SAME"
    },
    "conv2d_transpose": lambda: {
        "value": ones(1, 4, 4, 3), "filter": ones(2, 2, 2, 3), "output_shape": [1, 4, 4, 2],
        "strides": 1,
    },
    **dict.fromkeys(
        ("sigmoid_cross_entropy_with_logits", "softmax_cross_entropy_with_logits"),
        lambda: {"labels": ones(2, 3), "logits": ones(2, 3)},
    ),
    "sparse_softmax_cross_entropy_with_logits": lambda: {"labels": [0, 1], "logits": ones(2, 3)},
    "weighted_cross_entropy_with_logits": lambda: {
        "labels": ones(2), "logits": ones(2), "pos_weight": 2.0
    },
    "batch_norm_with_global_normalization": lambda: {
        "t": ones(1, 2, 2, 3), "m": ones(3), "v": ones(3), "beta": ones(3), "gamma": ones(3),
        "variance_epsilon": 0.1, "scale_after_normalization": True,
    },
    "expand_dims": lambda: {"input": ones(2), "axis": 0},
    "fused_batch_norm": lambda: {"x": ones(1, 2, 2, 3), "scale": ones(3), "offset": ones(3)},
    "framework": lambda: {"name": "numpy"},
    "get_variable": lambda: {"name": "v", "shape": [2]},
    "Variable": lambda: {"initial_value": [1.0]},
    "import_graph_def": lambda: {"graph_def": tf.Graph().as_graph_def()},
    "load_graph": lambda: {"graph_def": tf.Graph().as_graph_def()},
    "pad": lambda: {"tensor": ones(2), "paddings": [[0, 1]]},
    "reverse_sequence": lambda: {"input": ones(2, 3), "seq_lengths": [1, 2], "seq_axis": 1},
    **dict.fromkeys(
        ("scatter_add", "scatter_sub", "scatter_update"),
        lambda: {"ref": tf.Variable([1.0, 2.0]), "indices": [0], "updates": [1.0]},
    ),
    "scatter_nd_update": lambda: {
        "ref": tf.Variable([1.0, 2.0]), "indices": [[0]], "updates": [1.0]
    },
    "variables_initializer": lambda: {"variables": [tf.Variable(1.0)]},
    "all_gather": lambda: {"t": ones(2), **COLLECTIVE},
    "all_reduce": lambda: {
        "t": ones(2), **COLLECTIVE, "merge_op": "Add", "final_op": "Id", "subdiv_offsets": [0]
    },
    "broadcast_send": lambda: {"t": ones(2), "shape": [2], "dtype": "float32", **COLLECTIVE},
    "broadcast_recv": lambda: {"shape": [2], "dtype": "float32", **COLLECTIVE},
    "extract_sub_graph": lambda: {"graph_def": definition(), "dest_nodes": []},
    "remove_training_nodes": lambda: {"input_graph": definition()},
    "crop_and_resize": lambda: {
        "image": ones(1, 4, 4, 2), "boxes": [[0.0, 0.0, 1.0, 1.0]], "box_ind": [0],
        "crop_size": [2, 2],
    },
    "conv2d": images(**CONV),
    "convolution": images(padding="SAME"),
    "atrous_conv2d": lambda: {
        "value": ones(1, 4, 4, 2), "filters": ones(2, 2, 2, 3), "rate": 2, "padding": "SAME"
    },
    "depthwise_conv2d": images(**CONV),
    "depthwise_conv2d_native": images(**CONV),
    "separable_conv2d": lambda: {
        "input": ones(1, 4, 4, 2), "depthwise_filter": ones(2, 2, 2, 1),
        "pointwise_filter": ones(1, 1, 2, 3), **CONV,
    },
    "conv2d_backprop_input": lambda: {
        "input_sizes": [1, 4, 4, 2], "filter": ones(2, 2, 2, 3), "out_backprop": ones(1, 4, 4, 3),
        **CONV,
    },
    "conv3d": lambda: {
        "input": ones(1, 4, 4, 4, 2), "filter": ones(2, 2, 2, 2, 3), "strides": [1] * 5,
        "padding": "SAME",
    },
    "max_pool2d": lambda: {"input": ones(1, 4, 4, 2), **POOL},
    "max_pool_with_argmax": lambda: {"input": ones(1, 4, 4, 2), **POOL},
    "max_pool3d": lambda: {"input": ones(1, 4, 4, 4, 2), **POOL},
    "avg_pool3d": lambda: {"input": ones(1, 4, 4, 4, 2), **POOL},
    "dropout": lambda: {"x": ones(2), "rate": 0.5},
    "ClusterSpec": lambda: {"cluster": CLUSTER},
    "tensor_shape_from_node_def_name": lambda: {
        "graph": ones(2).graph, "input_name": "Const"
    },
    "partition_graph": lambda: {"fetches": ones(2), "cluster": tf.train.ClusterSpec(CLUSTER)},
}  # fmt: skip
# A file would be written, a session run or stay the default one, a job of MPI needed, tensors by
# position, or something would stay registered in this process.
LEFT_OUT = {
    "tf.io.write_graph", "tf.train.write_graph", "tf.register_op", "tf.register_function",
    "tf.summary.FileWriter", "tf.train.Server", "tf.einsum", "tf.linalg.einsum",
    "tf.InteractiveSession", "tf.graph_util.convert_variables_to_constants",
}  # fmt: skip
# TensorFlow's own words name the input or attribute of the operation.
OF_AN_OPERATION = re.compile(
    r"\b(?i:parameter|input|attr|list passed to) '\w+' of '\w+' Op\b|^\w+: .* feed_dict key"
)
WRONG = [None, -7, "wrogn", ["a"], object(), 1.5, {}]


def required(name: str) -> list[str]:
    """Return the arguments that a function cannot do without."""
    parameters = inspect.signature(PUBLIC[name]).parameters
    found = [each for each in CALLED[name] if parameters[each].default is inspect.Parameter.empty]
    return found if found or works(name, dict) else CALLED[name][:1]


def works(name: str, make: Callable[[], dict[str, Any]]) -> bool:
    with tf.Graph().as_default():
        try:
            PUBLIC[name](**make())
        except Exception:  # it is about to be found out which call has none
            return False
    return True


def candidates(names: list[str]) -> Iterator[Callable[[], dict[str, Any]]]:
    for values in itertools.islice(itertools.product(VALUES, repeat=len(names)), MOST_TRIES):
        yield lambda values=values: {  # type: ignore[misc]
            name: make() for name, make in zip(names, values, strict=True)
        }


@cache
def right_call(name: str) -> Callable[[], dict[str, Any]] | None:
    """Return what makes the arguments of a call that is right, None where none was found."""
    known = RIGHT.get(PUBLIC[name].__name__)
    tried = [known] if known is not None else candidates(required(name))
    return next((make for make in tried if works(name, make)), None)


def judged(name: str, argument: str, wrong: object) -> str | None:
    """Return what is wrong with the answer to a call with one wrong argument, None for nothing."""
    make = right_call(name)
    assert make is not None
    with tf.Graph().as_default():
        given = {**make(), argument: wrong}
        try:
            PUBLIC[name](**given)
        except (TypeError, ValueError, LookupError, DLBridgeError, OSError) as error:
            text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
            if isinstance(error, OSError):  # of a path that names nothing
                return None
            if not re.match(rf"{name_in_refusals(name)}[:(]", text):
                return f"does not name the call: {type(error).__name__}: {text}"
            named = re.search(rf"\b{argument}\b", text) or OF_AN_OPERATION.search(text)
            if isinstance(error, TypeError) and not named:
                return f"does not name the argument: {text}"
        except AssertionError as error:  # as in TensorFlow
            return None if str(error) == "a is not in graph" else f"AssertionError: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


SURVEYED = {name: each for name, each in CALLED.items() if name not in LEFT_OUT}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.fast(lambda wrong: isinstance(wrong, str | float))
def test_one_argument_of_a_wrong_type_is_refused_by_its_name_or_taken(
    module: str, wrong: object
) -> None:
    names = [name for name in SURVEYED if name.rpartition(".")[0] == module]
    assert not [name for name in names if right_call(name) is None]
    answers = {
        f"{name}({argument}={wrong!r})": judged(name, argument, wrong)
        for name in names
        for argument in CALLED[name]
    }
    found = [f"{call}: {answer}" for call, answer in answers.items() if answer is not None]
    assert not found, "\n".join(found)
