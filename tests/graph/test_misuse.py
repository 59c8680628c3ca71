"""Wrong calls of the public functions of dlbridge.graph: refusals name the call and what is wrong.

What TensorFlow raises for a wrong argument (TypeError, ValueError, InvalidArgumentError) is raised
here; the text begins with the name of the function or class that the user called.
"""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from graph.public_functions import CALLED, MODULES, PUBLIC, name_in_refusals

import dlbridge.graph as tf


def misspelt(name: str, keyword: str) -> str:
    """Return the refusal of a keyword whose first letter is there twice."""
    with tf.Graph().as_default(), pytest.raises(TypeError) as caught:
        PUBLIC[name](**{keyword[0] + keyword: 1})
    return str(caught.value)


@pytest.mark.parametrize("module", MODULES)
def test_a_misspelt_keyword_of_graphs_suggests_the_nearest(module: str) -> None:
    for name in CALLED:
        if name.rpartition(".")[0] == module:
            for keyword in CALLED[name]:
                assert re.fullmatch(
                    rf"{name_in_refusals(name)}\(\) got an unexpected keyword argument '\w+'[;.] "
                    rf"[Dd]id you mean '{keyword}'\?",
                    misspelt(name, keyword),
                )


def test_most_of_tensorflows_names_are_called() -> None:
    assert len(CALLED) > 500


def test_functions_and_classes_of_graphs_can_be_pickled_and_copied() -> None:
    for name, each in PUBLIC.items():
        assert pickle.loads(pickle.dumps(each)) is each, name
        assert copy.deepcopy(each) is each, name


@pytest.mark.parametrize(
    ("name", "keyword"),
    [("to_float", "dtype"), ("reduce_sum", "axes_"), ("exp", "y"), ("zeros_initializer", "shape_")],
)
def test_a_function_that_is_made_by_another_has_the_name_of_the_user(
    name: str, keyword: str
) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword"):
        getattr(tf, name)(**{keyword: 1})


def test_a_refusal_begins_with_the_call_whatever_found_it() -> None:
    with tf.Graph().as_default():
        with pytest.raises(TypeError, match=r"^add: .*input 'y' of 'Add' Op.*got 'a'"):
            tf.add(1.0, "a")
        with pytest.raises(ValueError, match=r"^reduce_sum: .*Invalid reduction dimension 3"):
            tf.reduce_sum([1.0], axis=3)
        with pytest.raises(ValueError, match=r"^ensure_shape: dimension -7 must be"):
            tf.ensure_shape([1.0], [-7])
        with pytest.raises(ValueError, match=r"^separable_conv2d: padding must be"):
            tf.nn.separable_conv2d(
                np.ones((1, 4, 4, 1), "f4"), np.ones((2, 2, 1, 1), "f4"),
                np.ones((1, 1, 1, 1), "f4"), [1, 1, 1, 1], 3,
            )  # fmt: skip
        with pytest.raises(KeyError, match=r"control_dependencies: The name 'x' refers"):
            tf.control_dependencies("x")
    with tf.Graph().as_default(), pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.assert_positive(-1.0)
    assert caught.value.message.startswith("assert_positive: ")
    assert str(caught.value).startswith("assert_positive: ")


WRONG = [None, -7, "wrogn", object(), 1.5, {}]
# Function, argument, what it must be, arguments before it and behind it.
KINDS: list[tuple[str, str, str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("assign", "ref", "a Variable", (), (1.0,)),
    ("assign_add", "ref", "a Variable", (), (1.0,)),
    ("assign_sub", "ref", "a Variable", (), (1.0,)),
    ("scatter_add", "ref", "a Variable", (), ([0], [1.0])),
    ("scatter_sub", "ref", "a Variable", (), ([0], [1.0])),
    ("scatter_update", "ref", "a Variable", (), ([0], [1.0])),
    ("scatter_nd_update", "ref", "a Variable", (), ([[0]], [1.0])),
    ("is_variable_initialized", "variable", "a Variable", (), ()),
    ("scalar_mul", "x", "a Tensor", (2.0,), ()),
    ("dump_graph", "graph", "a Graph", (), ()),
    ("dump_graph_buffers", "graph", "a Graph", (), ()),
    ("global_norm", "t_list", "a list", (), ()),
    ("clip_by_global_norm", "t_list", "a list", (), (1.0,)),
    ("einsum", "equation", "a string", (), ([1.0],)),
    ("check_numerics", "message", "a string", ([1.0],), ()),
]
ACCEPTED = {"a string": str, "a list": dict}  # of what there is in WRONG


@pytest.mark.parametrize(("name", "argument", "required", "before", "behind"), KINDS)
def test_an_argument_of_another_kind_is_refused_by_its_name(
    name: str, argument: str, required: str, before: tuple[Any, ...], behind: tuple[Any, ...]
) -> None:
    """As a TypeError, where it was an AttributeError from within."""
    for wrong in WRONG:
        if not isinstance(wrong, ACCEPTED.get(required, ())):
            with tf.Graph().as_default(), pytest.raises(TypeError) as caught:
                getattr(tf, name)(*before, wrong, *behind)
            text = str(caught.value)
            assert text.startswith(f"{name}: {argument} must be {required}"), text
            assert repr(wrong) in text


def test_variables_of_another_kind_are_refused() -> None:
    for wrong in (3, "ab", [1.5]):
        with tf.Graph().as_default(), pytest.raises(TypeError, match=r"^variables_initializer: "):
            tf.variables_initializer(wrong)


def test_strides_of_another_kind_are_refused() -> None:
    images, kernel = np.ones((1, 4, 4, 1), "f4"), np.ones((2, 2, 1, 1), "f4")
    for wrong in ("wrogn", ["a"], {}, object()):
        with (
            tf.Graph().as_default(),
            pytest.raises(ValueError, match=r"^conv2d: strides must be an integer or a list of"),
        ):
            tf.nn.conv2d(images, kernel, wrong, "SAME")


@pytest.mark.parametrize(
    "wrong", [-7, ["a"], object(), 1.5, {}], ids=lambda wrong: type(wrong).__name__
)
@pytest.mark.parametrize("argument", ["target", "framework", "graph", "config", "compile", "spmd"])
def test_a_session_refuses_what_is_of_another_kind(argument: str, wrong: object) -> None:
    with tf.Graph().as_default(), pytest.raises((TypeError, ValueError)) as caught:
        tf.Session(**{argument: wrong})  # type: ignore[arg-type]
    assert re.match(rf"Session: .*{argument}", str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    "wrong", [-7, "wrogn", object(), 1.5, (3,)], ids=lambda wrong: type(wrong).__name__
)
@pytest.mark.parametrize(
    ("argument", "required"),
    [
        ("feed_dict", "a dict"),
        ("receipts", "a list"),
        ("trace", "a Trace or True"),
        ("copy", "True or False"),
    ],
)
def test_a_run_refuses_what_is_of_another_kind(argument: str, required: str, wrong: object) -> None:
    """Before anything runs."""
    with tf.Graph().as_default() as graph:
        counter = tf.Variable(0)
        count = tf.assign_add(counter, 1)
    with tf.Session(graph=graph) as session:
        session.run(counter.initializer)
        with pytest.raises((TypeError, ValueError)) as caught:
            session.run(count, **{argument: wrong})  # type: ignore[arg-type]
        assert str(caught.value).startswith(f"Session.run: {argument} must be {required}, got ")
        assert session.run(counter) == 0


def test_a_misspelt_keyword_of_run_is_refused_in_the_name_of_session() -> None:
    with tf.Graph().as_default():
        x = tf.constant(1.0)
        with (
            tf.Session() as session,
            pytest.raises(TypeError, match=r"^Session\.run\(\) got an unexpected keyword"),
        ):
            session.run(x, fed_dict={})  # type: ignore[call-arg]


def test_an_error_of_a_function_of_the_user_is_left_as_it_is() -> None:
    def start(*_shape: object, **_rest: object) -> Any:
        raise ValueError("no start")

    def nested(*_shape: object, **_rest: object) -> Any:
        return tf.add(1.0, "a")

    with tf.Graph().as_default():
        with pytest.raises(ValueError, match=r"^no start$"):
            tf.get_variable("v", [2], initializer=start)
        with pytest.raises(TypeError, match=r"^add: "):
            tf.get_variable("w", [2], initializer=nested)


def test_the_warning_of_an_import_points_at_the_line_of_the_user() -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="x")
        definition = graph.as_graph_def()
    definition.node[0].attr["unknown"].i = 1
    with tf.Graph().as_default(), pytest.warns(UserWarning, match="'unknown' is unknown") as seen:
        tf.import_graph_def(definition)
    assert seen[0].filename == __file__
