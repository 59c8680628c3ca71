"""The public names of dlbridge.graph: documented, and few that TensorFlow 1.x code would miss."""

from __future__ import annotations

import builtins
import inspect
import types
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.graph import absent

NAMES = sorted(
    name for name, value in vars(tf).items() if not name.startswith("_") and callable(value)
)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented(name: str) -> None:
    thing = getattr(tf, name)
    assert inspect.getdoc(thing), name
    if inspect.isclass(thing) and thing.__module__.startswith("dlbridge.graph"):
        for member, value in vars(thing).items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_dir_shows_what_users_call() -> None:
    """Public modules are TensorFlow's; those that hold the implementation are not shown."""
    shown = dir(tf)
    assert {"Graph", "Session", "float32", "abs", "nn", "summary", "GraphDef"} <= set(shown)
    modules = [name for name in shown if inspect.ismodule(getattr(tf, name))]
    assert modules == [
        "bitwise", "collective_ops", "debugging", "errors", "graph_util", "image", "initializers",
        "io", "linalg", "math", "nn", "random", "sparse", "strings", "summary", "train",
    ]  # fmt: skip
    assert not {"Any", "core", "graphdef", "ops", "session", "variables"} & set(shown)


def test_parameters_of_graphs_are_tensorflows(framework) -> None:
    """Code written for TensorFlow passes them by name."""
    theirs = framework("tensorflow").compat.v1
    for name in (
        "constant", "convert_to_tensor", "placeholder", "placeholder_with_default", "identity",
        "stop_gradient", "no_op", "group", "tuple", "py_func", "name_scope", "device",
        "control_dependencies", "colocate_with", "add_to_collection", "get_collection",
        "set_random_seed", "get_seed", "is_tensor", "get_static_value",
    ):  # fmt: skip
        wanted = list(inspect.signature(getattr(theirs, name)).parameters)
        found = list(inspect.signature(getattr(tf, name)).parameters)
        if wanted == ["args", "kwargs"] or "kwargs" in wanted:
            continue
        assert found[: len(wanted)] == wanted, name


def test_graphs_are_all_there_is() -> None:
    assert tf.executing_eagerly() is False
    assert tf.disable_v2_behavior() is None
    with tf.Graph().as_default():
        x = tf.constant(1.0)
        assert tf.is_tensor(x)
        assert not tf.is_tensor(1.0)
        with tf.Session() as session:
            assert session.run(tf.numpy_function(np.negative, [x], tf.float32)) == -1
        with pytest.raises(TypeError, match="func is missing"):
            tf.numpy_function()


def test_importing_all_names_hides_no_builtin_and_no_module() -> None:
    names: dict[str, Any] = {}
    exec("from dlbridge.graph import *", names)
    del names["__builtins__"]
    assert not [name for name in names if hasattr(builtins, name)]
    assert not [name for name, value in names.items() if isinstance(value, types.ModuleType)]
    assert {"constant", "Session", "reduce_sum", "float32", "Graph", "Variable"} <= names.keys()


def test_namespaces_hold_the_same_functions() -> None:
    assert tf.math.add is tf.add
    assert tf.linalg.inv is tf.matrix_inverse
    assert tf.random.uniform is tf.random_uniform
    assert tf.math.reduce_sum is tf.reduce_sum
    for module in (tf.math, tf.linalg, tf.random, tf.bitwise):
        for name in vars(module):
            function = getattr(module, name)
            assert name.startswith("_") or not callable(function) or function.__doc__, name


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("gradients", "gradients"),
        ("while_loop", "control flow"),
        ("RandomShuffleQueue", "queues but FIFOQueue"),
    ],
)
def test_a_name_of_tensorflow_that_is_not_there_says_so(name: str, purpose: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name}.*have no {purpose}.*page .Graphs."):
        getattr(tf, name)


def test_optimisers_and_savers_say_that_they_are_not_there() -> None:
    for name in ("AdamOptimizer", "Saver", "exponential_decay"):
        with pytest.raises(AttributeError, match=rf"{name}.*optimisers.*page .Graphs."):
            getattr(tf.train, name)
    with pytest.raises(
        AttributeError, match=r"'partition_grahp'.*did you mean 'partition_graph'\?$"
    ):
        _ = tf.train.partition_grahp


def test_every_name_of_tensorflow_that_is_not_there_says_so(framework: Any) -> None:
    tensorflow = framework("tensorflow")
    if tensorflow.__version__.split(".")[:2] != ["2", "21"]:
        pytest.skip(f"the tables have the names of 2.21, this is {tensorflow.__version__}")
    theirs = tensorflow.compat.v1
    for module in ("", *tf._MODULES):
        ours = getattr(tf, module) if module else tf
        names = dir(getattr(theirs, module, None) if module else theirs)
        for name in names:
            if name.startswith("_") or hasattr(ours, name):
                continue
            with pytest.raises(AttributeError, match=r"tf\.compat\.v1|unlike TensorFlow's; see"):
                getattr(ours, name)


def test_no_name_that_is_there_is_said_to_be_absent() -> None:
    for module, names in absent.OTHERS.items():
        ours = getattr(tf, module) if module else tf
        assert [name for name in names.split() if hasattr(ours, name)] == []
    anywhere = " ".join(absent.PURPOSES.values()).split()
    assert [name for name in anywhere if hasattr(tf, name)] == []
    assert len(anywhere) == len(set(anywhere))


def test_names_in_two_modules_are_one_function(framework: Any) -> None:
    """Where they are in TensorFlow."""
    theirs, home = framework("tensorflow").compat.v1, {}
    spaces = {name: (getattr(tf, name), getattr(theirs, name, None)) for name in tf._MODULES}
    for ours, original in ((tf, theirs), *spaces.values()):
        for name in dir(original):
            value = getattr(original, name)
            if callable(value) and name in dir(ours):
                home.setdefault(id(value), getattr(ours, name))
    for space, (ours, original) in spaces.items():
        for name in dir(original):
            value = home.get(id(getattr(original, name)))
            if value is not None and not name.startswith("_"):
                assert getattr(ours, name) is value, f"tf.{space}.{name}"
    assert tf.errors.OUT_OF_RANGE == theirs.errors.OUT_OF_RANGE == 11


def test_a_misspelt_name_of_a_graph_gets_the_nearest() -> None:
    with pytest.raises(AttributeError, match="placeholder"):
        tf.placehodler
