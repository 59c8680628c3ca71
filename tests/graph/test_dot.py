"""Pictures of graphs: the DOT text, and what Graphviz makes of it."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

import dlbridge.graph as tf
from dlbridge.errors import FrameworkMissingError
from dlbridge.execution.trace import Crossing
from dlbridge.graph.core.dot import COLOURS, to_dot, to_svg


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 3], name="image")
        with tf.name_scope("pre"), tf.framework("numpy"):
            y = tf.multiply(x, 2.0, name="scaled")
        with tf.framework("torch"):
            tf.nn.relu(y, name="positive")
        with tf.control_dependencies([y]):
            tf.no_op(name="done")
    return graph


@pytest.fixture
def draw() -> Any:
    pytest.importorskip("graphviz", reason="the package graphviz is not installed")
    if shutil.which("dot") is None:
        pytest.skip("the program dot of Graphviz is not installed")
    return to_svg


def line_of(dot: str, start: str) -> str:
    (found,) = (line.strip() for line in dot.splitlines() if line.strip().startswith(start))
    return found


def test_operations_have_name_type_and_the_colour_of_their_framework(graph: Any) -> None:
    dot = graph.to_dot()
    assert line_of(dot, '"image" [') == ('"image" [label="image\\nPlaceholder", shape=ellipse]')
    assert f'label="scaled\\nMul", fillcolor="{COLOURS["numpy"]}"' in line_of(dot, '"pre/scaled" [')
    assert COLOURS["torch"] in line_of(dot, '"positive" [')


def test_edges_have_dtype_and_shape_and_control_edges_are_dashed(graph: Any) -> None:
    dot = graph.to_dot()
    assert 'label=" float32 (?, 3)"' in line_of(dot, '"image" -> "pre/scaled"')
    assert "style=dashed" in line_of(dot, '"pre/scaled" -> "done"')


def test_name_scopes_are_frames(graph: Any) -> None:
    dot = graph.to_dot()
    frame = dot[dot.index("cluster_pre/") :]
    frame = frame[: frame.index("  }")]
    assert 'label="pre"' in frame
    assert '"pre/scaled"' in frame
    assert '"positive"' not in frame


def test_values_that_change_their_framework_say_whether_they_were_copied(graph: Any) -> None:
    scaled = graph.get_tensor_by_name("pre/scaled:0")
    shared = to_dot(graph, None, {scaled: [Crossing("torch", True)]})
    assert "zero-copy" in line_of(shared, '"pre/scaled" -> "positive"')
    copied = to_dot(graph, None, {scaled: [Crossing("torch", False, "strides")]})
    assert "copied: strides" in line_of(copied, '"pre/scaled" -> "positive"')
    elsewhere = to_dot(graph, None, {scaled: [Crossing("jax", False, "strides")]})
    assert "copied" not in elsewhere


def test_the_trace_of_a_run_colours_what_ran_and_marks_what_crossed(
    framework: Any, graph: Any
) -> None:
    framework("torch")
    trace = tf.Trace()
    with tf.Session(graph=graph) as session:
        session.run("positive:0", {"image:0": [[1.0, 2.0, 3.0]]}, trace=trace)
    dot = graph.to_dot(trace)
    assert COLOURS["numpy"] in line_of(dot, '"pre/scaled" [')
    assert COLOURS["torch"] in line_of(dot, '"positive" [')
    assert "zero-copy" in line_of(dot, '"pre/scaled" -> "positive"')
    assert "fillcolor" not in line_of(dot, '"done" ['), "it did not run"


def test_a_copy_between_frameworks_is_marked_with_its_reason(framework: Any) -> None:
    """PyTorch takes no negative strides."""
    framework("torch")
    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [None], name="x")
        with tf.framework("torch"):
            y = tf.nn.relu(tf.call(lambda x: x[::-1], [x], tf.float32, "numpy", name="back"))
        trace = tf.Trace()
        session.run(y, {x: [1.0, 2.0]}, trace=trace)
    assert "copied: strides" in line_of(graph.to_dot(trace), '"back" -> "Relu"')


def test_several_frameworks_are_explained_by_a_legend(graph: Any) -> None:
    assert '"legend numpy"' in graph.to_dot()
    alone = tf.Graph()
    with alone.as_default():
        tf.constant(1.0)
    assert "legend" not in alone.to_dot()


def test_odd_names_are_quoted() -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="a.b-c")
        tf.constant(1.0, name="node")  # a word of the language
    dot = graph.to_dot()
    assert '"a.b-c" [' in dot
    assert '"node" [' in dot


def test_graphviz_draws_every_operation_and_edge(graph: Any, draw: Any) -> None:
    svg = draw(graph.to_dot())
    assert len(re.findall('class="edge"', svg)) == 4
    titles = set(re.findall("<title>(.*?)</title>", svg))
    assert {op.name for op in graph.get_operations()} <= titles
    assert "<svg" in graph._repr_svg_()


def test_without_graphviz_there_is_a_clear_error_and_no_picture(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook then shows the text of the graph, as it does where a picture is None."""
    monkeypatch.setitem(__import__("sys").modules, "graphviz", None)
    with pytest.raises(FrameworkMissingError, match="pip install graphviz"):
        to_svg(graph.to_dot())
    assert graph._repr_svg_() is None
