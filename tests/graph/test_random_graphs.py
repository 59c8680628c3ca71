"""Random graphs, from TensorFlow to dlbridge and back: shapes, dtypes, nodes and values are equal.

`HYPOTHESIS_PROFILE=thorough` tries thousands of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph import random_graphs, random_steps
from graph.random_graphs import Plan, Step
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dlbridge.graph as tf
from dlbridge.graph.core import opdef
from dlbridge.graph.core.default_graph import apply
from dlbridge.proto.datatypes import as_dtype

SOURCES = st.randoms(use_true_random=False)
# A graph that fails is short enough, and to shrink it takes minutes.
unshrunk = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def v1(framework: Callable[[str], Any]) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return framework("tensorflow").compat.v1


def build_ours(plan: Plan) -> tuple[tf.Graph, list[Any]]:
    def make(step: Step, inputs: list[Any]) -> Any:
        if step.op == "Const":
            return tf.constant(step.attrs["value"], name=step.name).op
        attrs = {
            key: as_dtype(value) if isinstance(value, str) else value
            for key, value in step.attrs.items()
        }
        if "shape" in attrs:
            attrs["shape"] = tf.TensorShape(attrs["shape"])
        return apply(step.op, inputs, attrs, step.name)

    graph = tf.Graph()
    with graph.as_default():
        return graph, random_graphs.build(plan, graph, make)


def build_theirs(v1: Any, plan: Plan) -> tuple[Any, list[Any]]:
    from tensorflow.python.framework import op_def_library

    def make(step: Step, inputs: list[Any]) -> Any:
        if step.op == "Const":
            return v1.constant(step.attrs["value"], name=step.name).op
        definition = opdef.op_def(step.op)
        named = dict(zip([each.name for each in definition.inputs], inputs, strict=True))
        attrs = {**fixed_defaults(definition), **step.attrs}
        made = op_def_library.apply_op(step.op, name=step.name, **named, **attrs)
        first = made[0] if isinstance(made, list | tuple) else made
        return first.op if hasattr(first, "op") else first

    graph = v1.Graph()
    with graph.as_default():
        return graph, random_graphs.build(plan, graph, make)


def fixed_defaults(definition: Any) -> dict[str, Any]:
    """Return the defaults of attributes that do not follow from inputs."""
    inferred = {
        name
        for each in definition.inputs
        for name in (each.type_attr, each.number_attr, each.type_list_attr)
    }
    return {
        name: getattr(value, "as_datatype_enum", value)
        for name, value in definition.defaults.items()
        if name not in inferred
    }


def run(graph: Any, plan: Plan, names: list[str], session: Any) -> list[Any]:
    """Return the values of the tensors of these names."""
    feeds = {graph.get_tensor_by_name(names[i]): array for i, array in plan.feeds.items()}
    with session:
        values: list[Any] = session.run([graph.get_tensor_by_name(name) for name in names], feeds)
    return values


def plain_session(v1: Any, graph: Any) -> Any:
    """Return a session that runs the graph as it is.

    TensorFlow's optimiser makes x[:0:-1] of a constant x empty.
    """
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return v1.Session(graph=graph, config=config)


def assert_same_values(plan: Plan, graph: Any, ours: list[Any], theirs: list[Any]) -> None:
    for value, one, other in zip(plan.values, ours, theirs, strict=True):
        name = f"{plan.steps[value.step].name}:{value.index}"
        static = graph.get_tensor_by_name(name).shape
        assert static.is_compatible_with(value.shape), f"{name}: {static}, is {value.shape}"
        assert np.shape(one) == np.shape(other), name
        assert np.shape(other) == value.shape, f"the generator is wrong about {name}"
        assert np.asarray(one).dtype == np.asarray(other).dtype, name
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5, err_msg=name)


def describe(op: Any) -> Any:
    """Return what is the same of an operation wherever it was built."""
    inputs = [tensor.name for tensor in op.inputs]
    controls = [each.name for each in op.control_inputs]
    return op.name, op.type, inputs, controls, [each.dtype.name for each in op.outputs]


def static_shapes(op: Any) -> list[Any]:
    return [None if each.shape.rank is None else each.shape.as_list() for each in op.outputs]


def assert_same_operations(graph: Any, other: Any) -> None:
    operations = graph.get_operations(), other.get_operations()
    assert len(operations[0]) == len(operations[1])
    for one, two in zip(*operations, strict=True):
        assert describe(one) == describe(two)
        for ours, theirs in zip(static_shapes(one), static_shapes(two), strict=True):
            assert agrees(ours, theirs), f"{describe(one)}: {ours}, in TensorFlow {theirs}"


def agrees(ours: Any, theirs: Any) -> bool:
    """Return whether we know all that TensorFlow knows of a shape.

    Sometimes we know more: an extent that is broadcast against 0 is 0, and what has no axes to be
    transposed has rank 0. That it is true is seen when the values are compared.
    """
    if ours is None or theirs is None:
        return theirs is None
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) and all(b is None or a == b for a, b in pairs)


def attributes(graph_def: Any) -> dict[str, Any]:
    """Return the attributes of each node in one form, without defaults and private ones."""
    from dlbridge.proto.attributes import read_attr

    found = {}
    for node in graph_def.node:
        defaults = opdef.op_def(node.op).defaults
        values = {name: read_attr(value) for name, value in node.attr.items()}
        found[node.name] = {
            name: value
            for name, value in values.items()
            if name[0] != "_" and not (name in defaults and defaults[name] == value)
        }
    return found


def test_the_generator_knows_only_op_types_that_exist() -> None:
    assert set(random_steps.STEPS) <= set(opdef.names())


@unshrunk
@given(SOURCES)
def test_graphs_of_tensorflow_run_the_same_here(v1: Any, source: random.Random) -> None:
    plan = random_steps.draw_plan(source)
    built, tensors = build_theirs(v1, plan)
    names = [tensor.name for tensor in tensors]
    graph_def = built.as_graph_def()
    graph = tf.load_graph(graph_def.SerializeToString())
    assert_same_operations(graph, built)
    assert attributes(graph.as_graph_def()) == attributes(graph_def)
    ours = run(graph, plan, names, tf.Session(graph=graph))
    theirs = run(built, plan, names, plain_session(v1, built))
    assert_same_values(plan, graph, ours, theirs)


@unshrunk
@given(SOURCES)
def test_our_graphs_run_the_same_in_tensorflow(v1: Any, source: random.Random) -> None:
    plan = random_steps.draw_plan(source)
    graph, tensors = build_ours(plan)
    names = [tensor.name for tensor in tensors]
    data = tf.dump_graph(graph)
    imported = v1.Graph()
    with imported.as_default():
        v1.import_graph_def(v1.GraphDef.FromString(data), name="")
    assert_same_operations(graph, imported)
    assert attributes(imported.as_graph_def()) == attributes(graph.as_graph_def())
    ours = run(graph, plan, names, tf.Session(graph=graph))
    theirs = run(imported, plan, names, plain_session(v1, imported))
    assert_same_values(plan, graph, ours, theirs)


@unshrunk
@given(SOURCES)
def test_a_written_graph_is_read_back_without_a_difference(source: random.Random) -> None:
    plan = random_steps.draw_plan(source)
    graph, _ = build_ours(plan)
    data = tf.dump_graph(graph)
    again = tf.load_graph(data)
    assert_same_operations(again, graph)
    assert tf.dump_graph(again) == data
    shuffled = graph.as_graph_def()
    nodes = list(shuffled.node)
    source.shuffle(nodes)
    del shuffled.node[:]
    shuffled.node.extend(nodes)
    by_name = {op.name: describe(op) for op in tf.load_graph(shuffled).get_operations()}
    assert by_name == {op.name: describe(op) for op in graph.get_operations()}
