"""Names, scopes, devices, control dependencies, look-ups: the same programs here and in TensorFlow.

Each program is run with both modules; what it returns, or the class of what it raises, must agree.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dlbridge.graph as ours

Program = Callable[[Any], Any]


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    tensorflow = framework("tensorflow")
    return tensorflow.compat.v1


def outcome(tf: Any, program: Program) -> Any:
    """Return what a program returns in a graph of its own, or which error it raises."""
    try:
        with tf.Graph().as_default():
            return program(tf)
    except Exception as error:
        return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins").__name__


PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def names(tf: Any) -> list[str]:
    return [op.name for op in tf.get_default_graph().get_operations()]


def scoped(tf: Any, *scopes: str | None) -> str:
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(tf.name_scope(scope))
        return tf.no_op(name="n").name


def enter(*blocks):
    for block in blocks:
        block.__enter__()
    return blocks


def leave(block):
    block.__exit__(None, None, None)


# ---- names -------------------------------------------------------------------------------------


@program
def a_device_left_before_a_name_scope(tf):
    graph = tf.get_default_graph()
    device, scope = enter(graph.device("/cpu:0"), graph.name_scope("a"))
    leave(device)
    inside = tf.no_op("x")
    leave(scope)
    return inside.name, inside.device, tf.no_op("x").name


@program
def a_name_scope_left_before_a_device(tf):
    graph = tf.get_default_graph()
    scope, device = enter(graph.name_scope("a"), graph.device("/cpu:0"))
    leave(scope)
    inside = tf.no_op("x")
    leave(device)
    return inside.name, inside.device, tf.no_op("y").device


@program
def devices_left_out_of_order(tf):
    graph = tf.get_default_graph()
    outer, _inner = enter(graph.device("/cpu:0"), graph.device("/cpu:1"))
    leave(outer)


@program
def the_right_device_after_one_left_out_of_order(tf):
    graph = tf.get_default_graph()
    outer, inner = enter(graph.device("/cpu:0"), graph.device("/cpu:1"))
    with contextlib.suppress(RuntimeError):
        leave(outer)
    first = tf.no_op().device
    leave(inner)
    return first, tf.no_op().device


@program
def control_dependencies_left_out_of_order(tf):
    graph = tf.get_default_graph()
    op = tf.no_op()
    outer, _inner = enter(graph.control_dependencies([op]), graph.control_dependencies([op]))
    leave(outer)


@program
def a_default_graph_whose_block_is_dropped(tf):
    tf.Graph().as_default().__enter__()
    return names(tf)


@program
def equal_names_get_suffixes(tf):
    for name in ("Const", "Const", "Const_1", "foo", "foo", "foo_1", "foo", "FOO", "p/q", "p", "p"):
        tf.constant(1.0, name=name)
    return names(tf)


@program
def a_scope_named_like_an_operation_is_bumped(tf):
    tf.constant(1.0, name="c")
    with tf.name_scope("c") as scope:
        return scope, tf.constant(1.0).name


@program
def scopes_nest_and_are_unique(tf):
    out = []
    for outer, inner in (("s", "t"), ("s", "t"), ("s/", "t"), ("s/t/", "u"), ("S", "t")):
        with tf.name_scope(outer) as a, tf.name_scope(inner) as b:
            out += [a, b, tf.no_op(name="n").name]
    return out


@program
def a_trailing_slash_enters_a_scope_again_from_anywhere(tf):
    with tf.name_scope("s") as scope:
        pass
    with tf.name_scope("other"), tf.name_scope(scope) as again:
        return again, tf.no_op(name="n").name


@program
def empty_names_reset_to_the_root(tf):
    return scoped(tf, "a", ""), scoped(tf, "a", None), scoped(tf, "a", "", "b")


@program
def an_operation_name_with_a_slash_is_absolute(tf):
    with tf.name_scope("t"):
        first = tf.no_op(name="s/abs/").name
    return first, names(tf)


@program
def an_absolute_name_is_not_made_unique(tf):
    tf.no_op(name="s/abs/")
    tf.no_op(name="s/abs/")


@program
def an_absolute_name_does_not_reserve_itself(tf):
    tf.no_op(name="s/abs/")
    tf.no_op(name="s/abs")


@program
def unique_name_can_ask_without_taking(tf):
    graph = tf.get_default_graph()
    out = [graph.unique_name("a", mark_as_used=False) for _ in range(2)]
    out += [graph.unique_name("a") for _ in range(3)] + [graph.unique_name("A")]
    with tf.name_scope("s"):
        return [*out, graph.unique_name("a"), graph.get_name_scope()]


@program
def many_names_taken_beforehand_are_skipped(tf):
    for i in (1, 2, 3, 5):
        tf.no_op(name=f"n_{i}")
    return [tf.no_op(name="n").name for _ in range(5)]


@program
def name_scope_takes_a_default_name_and_values(tf):
    x = tf.constant(1.0)
    with tf.name_scope(None, "given", [x]) as a, tf.name_scope("own", "given", [x]) as b:
        return a, b


@program
def name_scope_of_values_without_a_name(tf):
    with tf.name_scope(None, values=[tf.constant(1.0)]):
        pass


@program
def name_scope_enters_the_graph_of_its_values(tf):
    x = tf.constant(1.0)
    with tf.Graph().as_default(), tf.name_scope("s", values=[x]):
        return tf.get_default_graph() is x.graph, tf.no_op().name


@program
def name_scope_refuses_values_of_two_graphs(tf):
    x = tf.constant(1.0)
    with tf.Graph().as_default(), tf.name_scope("s", values=[x, tf.constant(1.0)]):
        pass


@program
def name_scope_takes_no_values_for_a_default_name(tf):
    with tf.name_scope("s", [tf.constant(1.0)]):
        pass


@program
def implicit_operands_are_named_under_the_operation(tf):
    a = tf.constant(1.0)
    tf.identity(1.0, name="i")
    tf.identity([a, 2.0])
    tf.convert_to_tensor([[a, 2.0], [1.0, a]])
    tf.convert_to_tensor([a, 2.0], name="nm")
    tf.convert_to_tensor(3, name="q")
    tf.convert_to_tensor(3)
    tf.placeholder_with_default([1.0], [None])
    with tf.name_scope("s"):
        tf.stop_gradient(1)
    return [(op.name, op.type, [x.name for x in op.inputs]) for op in a.graph.get_operations()]


@program
def addition_names_its_operands(tf):
    a = tf.constant(1.0)
    return [(x.name, [each.name for each in x.op.inputs]) for x in (a + a, a + 1.0, 1.0 + a)]


# ---- tensors and operations --------------------------------------------------------------------


@program
def tensors_print_as_in_tensorflow(tf):
    with tf.device("/cpu:0"):
        tensors = [
            tf.constant([[1, 2]]),
            tf.placeholder(tf.float32, [3]),
            tf.placeholder(tf.string),
            tf.constant(True),
        ]
    return [(str(each), repr(each), repr(each.op)) for each in tensors]


@program
def consumers_come_once_for_each_use(tf):
    a = tf.constant(1.0)
    b = tf.identity(a, name="b")
    tf.convert_to_tensor([a, a, b], name="c")
    tf.identity(a, name="d")
    return [op.name for op in a.consumers()], [op.name for op in b.consumers()]


@program
def an_operation_tells_about_itself(tf):
    op = tf.identity(tf.constant([1.0, 2.0]), name="i").op
    (x,) = op.outputs
    same = x is op.values()[0], x.op is op, x.graph is op.graph, x.value_index, x.device
    return op.name, op.type, [each.name for each in op.inputs], op.device, same


@program
def attributes_have_tensorflows_types(tf):
    c, p = tf.constant([1.0, 2.0], name="c").op, tf.placeholder(tf.int32, [None, 2]).op
    value, shape = c.get_attr("value"), p.get_attr("shape")
    return (
        c.get_attr("dtype").name,
        type(value).__name__,
        value.SerializeToString(),
        type(shape).__name__,
        shape.SerializeToString(),
    )


@program
def a_missing_attribute(tf):
    return tf.constant(1.0).op.get_attr("zzz")


@program
def outputs_cannot_be_counted_from_the_end(tf):
    tf.constant(1.0, name="a")
    return tf.get_default_graph().get_tensor_by_name("a:9")


def use(how: Callable[[Any], Any]) -> Program:
    return lambda tf: how(tf.constant(1.0))


PROGRAMS |= {
    f"a_tensor_has_no_{how.__name__}": use(how) for how in (bool, iter, len, float, int, complex)
}
PROGRAMS["a_tensor_contains_nothing"] = use(lambda x: 1 in x)
PROGRAMS["a_tensor_unpacks_to_nothing"] = use(lambda x: [*x])


@program
def tensors_of_two_graphs_do_not_mix(tf):
    x = tf.constant(1.0)
    with tf.Graph().as_default():
        return x + tf.constant(1.0)


@program
def dtypes_do_not_mix(tf):
    return tf.constant(1.0) + tf.constant(1)


@program
def none_is_no_operand(tf):
    return tf.identity(None)


# ---- look-ups ----------------------------------------------------------------------------------

ELEMENTS = ["c", "c:0", "c:1", "zz", "zz:0", "c:b", "c:0:0", ":0", "c:", "", b"c", b"c:0", 3, None]


def look_up(method: str, item: Any) -> Program:
    def run(tf):
        tf.constant(1.0, name="c")
        return getattr(tf.get_default_graph(), method)(item).name

    return run


PROGRAMS |= {
    f"{method}({item!r})": look_up(method, item)
    for method in ("get_tensor_by_name", "get_operation_by_name", "as_graph_element")
    for item in ELEMENTS
}


def element(allow_tensor: bool, allow_operation: bool, attribute: str) -> Program:
    def run(tf):
        item = getattr(tf.constant(1.0, name="c"), attribute)
        graph = tf.get_default_graph()
        item = item if attribute != "graph" else "c"
        return graph.as_graph_element(item, allow_tensor, allow_operation).name

    return run


PROGRAMS |= {
    f"as_graph_element of {attribute} {tensor} {operation}": element(tensor, operation, attribute)
    for attribute in ("name", "op", "graph", "dtype")
    for tensor in (True, False)
    for operation in (True, False)
}


@program
def elements_of_another_graph(tf):
    x = tf.constant(1.0)
    return tf.Graph().as_graph_element(x)


@program
def operations_of_another_graph(tf):
    x = tf.constant(1.0)
    return tf.Graph().as_graph_element(x.op)


# ---- control dependencies ----------------------------------------------------------------------


def controls(tf: Any) -> list[Any]:
    ops = tf.get_default_graph().get_operations()
    return [(op.name, [each.name for each in op.control_inputs]) for op in ops]


@program
def control_dependencies_accumulate_and_none_clears(tf):
    a, b, c = (tf.no_op(name=name) for name in "abc")
    with tf.control_dependencies([a, b]):
        tf.no_op()
        with tf.control_dependencies([b, c, c]):
            tf.no_op()
            with tf.control_dependencies(None):
                tf.no_op()
                with tf.control_dependencies([a]):
                    tf.no_op()
    return controls(tf)


@program
def control_dependencies_take_tensors_and_names(tf):
    a = tf.constant(1.0, name="a")
    for inputs in ([a], [a.op], ["a"], ["a:0"], [b"a"], [a, a.op, "a"], []):
        with tf.control_dependencies(inputs):
            tf.no_op()
    return controls(tf)


@program
def what_is_taken_as_data_is_no_control_input(tf):
    a, b = tf.constant(1.0, name="a"), tf.constant(1.0, name="b")
    with tf.control_dependencies([a, b]):
        tf.identity(a)
    return controls(tf)


@program
def what_was_created_in_the_block_waits_already(tf):
    a, b = tf.constant(1.0, name="a"), tf.constant(1.0, name="b")
    with tf.control_dependencies([a]):
        f = tf.identity(b)
        with tf.control_dependencies([b]):
            g = tf.identity(f)
        tf.identity(g)
        tf.identity(1.0)
    tf.identity(f)
    return controls(tf)


@program
def control_dependencies_of_a_number(tf):
    with tf.control_dependencies([3]):
        pass


@program
def control_dependencies_of_a_tensor_alone(tf):
    with tf.control_dependencies(tf.constant(1.0)):
        pass


@program
def control_dependencies_of_an_unknown_name(tf):
    with tf.control_dependencies(["zz"]):
        pass


@program
def control_dependencies_of_another_graph(tf):
    x = tf.constant(1.0)
    with tf.Graph().as_default(), tf.control_dependencies([x]):
        pass


@program
def control_dependencies_stay_with_their_graph(tf):
    x = tf.constant(1.0)
    with tf.control_dependencies([x]), tf.Graph().as_default():
        return list(tf.no_op().control_inputs)


@program
def group_and_tuple_gate(tf):
    a, b = tf.constant(1.0, name="a"), tf.constant(2.0, name="b")
    with tf.device("/gpu:0"):
        c = tf.constant(1.0, name="c")
    tf.group()
    tf.group(a, b.op, name="gr")
    tf.group([a, [b]])
    tf.group(a, b, c)
    tf.group(c)
    tf.tuple([a, None, b])
    tf.tuple([a, b], name="tu", control_inputs=[c])
    tf.no_op()
    ops = a.graph.get_operations()
    return controls(tf), [(op.type, op.device, [x.name for x in op.inputs]) for op in ops]


@program
def tuple_of_nothing(tf):
    return tf.tuple([None])


@program
def group_of_a_number(tf):
    return tf.group(3)


# ---- devices -----------------------------------------------------------------------------------

DEVICES = [
    "/cpu:0", "/CPU", "/gpu:*", "/job:w", "job:w", "cpu:0", "/device:GPU:1", "/task:1", "/foo:1",
    "/job:a/job:b", "/cpu:0/gpu:1", "/device:gpu:1", "/job:", "/replica:x", "/device:XYZ:0", "GPU",
    "/", "", "//cpu:0", "/job:w/replica:0/task:3/device:TPU:7", "/device:CPU", "/device:CPU:*",
    "/xla_cpu:0", "/tpu:1", " /cpu:0", "/device:a:b:c", "/job:a:b", "/task:1:2", "/cpu:", "/EPU",
    "/replica:2/task:0", "/custom:3",
]  # fmt: skip


def on_device(*specs: Any) -> Program:
    def run(tf):
        with contextlib.ExitStack() as stack:
            for spec in specs:
                stack.enter_context(tf.device(spec))
            return tf.constant(0.0).device

    return run


def on_two(op: Any) -> str:
    return "/device:CPU:2"


def as_it_is(op: Any) -> str:
    return op.device


STACKS: list[tuple[Any, ...]] = [
    ("/job:w/task:1", "/gpu:2"), ("/gpu:2", "/cpu:*"), ("/gpu:2", ""), ("/gpu:2", None),
    ("/gpu:2", None, "/job:a"), ("/gpu:1", on_two), ("/job:a", on_two), (on_two, "/job:a/gpu:1"),
    (on_two, as_it_is, "/job:a"), ("/job:a", as_it_is, "/gpu:3"), (on_two, None, "/job:a"),
    ("/job:a", lambda op: f"/job:b/{op.type}"), ("/job:a", lambda op: None), (3,),
    ("/job:a/task:1", "/job:b", "/task:2", "/gpu"),
]  # fmt: skip

PROGRAMS |= {f"device {spec!r}": on_device(spec) for spec in DEVICES}
PROGRAMS |= {f"devices {i}": on_device(*specs) for i, specs in enumerate(STACKS)}


@program
def colocation_names_its_group_and_takes_its_device(tf):
    a = tf.constant(1.0, name="a")
    with tf.device("/gpu:3"):
        base = tf.constant(1.0, name="base")
    with tf.device("/cpu:0"), tf.colocate_with(base):
        d = tf.constant(2.0)
        with tf.device("/job:z"):
            d2 = tf.constant(2.0)
    with tf.colocate_with(d):
        e = tf.constant(2.0)
    with tf.colocate_with(base), tf.colocate_with(a):
        f = tf.constant(1.0)
    with tf.colocate_with(base), tf.colocate_with(a, ignore_existing=True):
        h = tf.constant(1.0)
    found = [(x.device, x.op.get_attr("_class")) for x in (d, d2, e, f, h)]
    return found, [x.op.colocation_groups() for x in (a, base, d, f)]


@program
def colocation_with_nothing(tf):
    graph = tf.get_default_graph()
    with graph.colocate_with(None):
        pass


# ---- graphs ------------------------------------------------------------------------------------


@program
def collections_are_lists_by_name(tf):
    graph = tf.get_default_graph()
    a = tf.constant(1.0, name="s/a")
    tf.add_to_collection("k", a)
    tf.add_to_collection("k", a)
    tf.add_to_collection("k", 3)
    graph.add_to_collections(["m", "n", "m"], 1)
    graph.add_to_collections("one", 1)
    copy = tf.get_collection("k")
    copy.append(4)
    tf.get_collection_ref("k").append(5)
    graph.clear_collection("n")
    by_scope = [len(tf.get_collection("k", scope)) for scope in ("s", "s/a", "a", ".*a", "")]
    return (
        len(tf.get_collection("k")), by_scope, tf.get_collection("m"), tf.get_collection("one"),
        tf.get_collection("none"), sorted(graph.get_all_collection_keys()),
    )  # fmt: skip


@program
def graph_keys_are_tensorflows(tf):
    keys = tf.GraphKeys
    return {
        name: getattr(keys, name)
        for name in vars(keys)
        if name.isupper() and not name.startswith("_")
    }


FINAL: dict[str, Callable[[Any, Any], Any]] = {
    "no_op": lambda tf, x: tf.no_op(),
    "constant": lambda tf, x: tf.constant(1.0),
    "add": lambda tf, x: x + x,
    "collection": lambda tf, x: tf.add_to_collection("a", 1),
    "unique_name": lambda tf, x: tf.get_default_graph().unique_name("u"),
    "device": lambda tf, x: within(tf.device("/cpu:0")) and None,
    "name_scope": lambda tf, x: within(tf.name_scope("ns")),
    "control": lambda tf, x: within(tf.control_dependencies([x])) and None,
    "collection_ref": lambda tf, x: tf.get_collection_ref("none"),
}


def within(block: Any) -> Any:
    with block as result:
        return result


def finalized(what: Callable[[Any, Any], Any]) -> Program:
    def run(tf):
        x = tf.constant(1.0)
        tf.get_default_graph().finalize()
        assert tf.get_default_graph().finalized
        return what(tf, x)

    return run


PROGRAMS |= {f"a finalized graph and {name}": finalized(what) for name, what in FINAL.items()}


@program
def a_graph_counts_its_operations(tf):
    graph = tf.get_default_graph()
    before = graph.version
    tf.constant(1.0)
    tf.constant(1.0)
    return before, graph.version, len(graph.get_operations())


@program
def feeding_and_fetching_can_be_prevented(tf):
    graph = tf.get_default_graph()
    a, b, c = (tf.constant(1.0) for _ in range(3))
    graph.prevent_feeding(a)
    graph.prevent_fetching(b.op)
    graph.prevent_fetching(c.op)
    return [
        (graph.is_feedable(x), graph.is_fetchable(x), graph.is_fetchable(x.op)) for x in (a, b, c)
    ]


@program
def seeds_come_from_graph_and_operation(tf):
    out = [tf.get_seed(None), tf.get_seed(5)] if hasattr(tf, "get_seed") else None
    tf.set_random_seed(3)
    tf.constant(1.0)
    out = [*out, tf.get_seed(7), tf.get_seed(0)]
    tf.set_random_seed(0)
    return [tuple(pair) for pair in [*out, tf.get_seed(0)]]


@program
def leaving_blocks_in_the_wrong_order(tf):
    one, two = tf.Graph().as_default(), tf.Graph().as_default()
    one.__enter__()
    two.__enter__()
    try:
        leave(one)
    finally:
        with contextlib.suppress(AssertionError, RuntimeError, IndexError):
            leave(two)
            leave(one)


@program
def reset_within_a_block(tf):
    tf.reset_default_graph()


@program
def as_default_nests(tf):
    outer, inner = tf.get_default_graph(), tf.Graph()
    with inner.as_default() as entered:
        middle = tf.get_default_graph() is inner, entered is inner
    return middle, tf.get_default_graph() is outer


# Differences on purpose: name -> our behaviour.
DIFFERENT: dict[str, Any] = {
    "devices 13": "TypeError",  # a number: TensorFlow fails somewhere inside
    "leaving_blocks_in_the_wrong_order": "AssertionError",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_in_tensorflow(name: str, tf1: Any) -> None:
    found = outcome(ours, PROGRAMS[name])
    assert found == DIFFERENT.get(name, outcome(tf1, PROGRAMS[name]))


LETTERS = "aB0._-/>\\ :é\n"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["op", "scope", "leave", "unique"]), st.text(LETTERS, max_size=3)
        ),
        max_size=12,
    )
)
@example([("scope", "0"), ("op", "/")])  # the full name "" after its slash is gone
@example([("scope", "0"), ("op", "_a/")])
@example([("scope", "0"), ("op", "//")])
@example([("scope", "0"), ("scope", "/")])
@example([("scope", "0"), ("scope", ">/"), ("op", "")])
def test_any_names_come_out_as_in_tensorflow(steps: list[tuple[str, str]]) -> None:
    tensorflow = pytest.importorskip("tensorflow")

    def run(tf):
        out = []
        with contextlib.ExitStack() as outer:
            entered = [outer]
            for what, name in steps:
                if "\n" in name:  # TensorFlow's pattern lets one end a name, its core does not
                    continue
                if what == "leave" and len(entered) > 1:
                    entered.pop().close()
                    continue
                try:
                    if what == "scope":
                        inner = outer.enter_context(contextlib.ExitStack())
                        out.append(inner.enter_context(tf.name_scope(name)))
                        entered.append(inner)
                    elif what == "unique":
                        out.append(tf.get_default_graph().unique_name(name or "u"))
                    else:
                        out.append(tf.no_op(name=name).name)
                except ValueError:
                    out.append("ValueError")
        return out

    assert outcome(ours, run) == outcome(tensorflow.compat.v1, run)


# ---- ours alone --------------------------------------------------------------------------------


def test_negative_outputs_are_refused() -> None:
    """TensorFlow returns the last output for "a:-1"."""
    with ours.Graph().as_default() as graph:
        ours.constant(1.0, name="a")
        with pytest.raises(ValueError, match="a:-1"):
            graph.get_tensor_by_name("a:-1")


def test_results_are_tuples_that_nobody_can_change() -> None:
    """In TensorFlow `op.outputs.append` succeeds."""
    with ours.Graph().as_default():
        op = ours.constant(1.0).op
    assert op.outputs == op.values()
    assert type(op.outputs) is type(op.inputs) is type(op.control_inputs) is tuple


def test_a_framework_is_a_scope_with_checked_names() -> None:
    with ours.Graph().as_default():
        with ours.framework("torch"):
            a = ours.constant(1.0)
            with ours.framework(None):
                b = ours.constant(1.0)
        c = ours.constant(1.0)
        assert [x.op.framework for x in (a, b, c)] == ["torch", None, None]
        with pytest.raises(ValueError, match="'keras' runs no nodes; known are numpy, torch"):
            ours.framework("keras")


def test_each_thread_has_its_own_defaults_and_scopes() -> None:
    found = []
    with ours.Graph().as_default() as graph, ours.name_scope("s"), ours.device("/gpu:0"):

        def other() -> None:
            found.append(ours.get_default_graph() is graph)
            with graph.as_default():
                found.append((ours.no_op().name, ours.no_op().device))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert ours.no_op().name == "s/NoOp"
    assert found == [False, ("NoOp", "")]


def test_many_threads_build_one_graph() -> None:
    graph = ours.Graph()
    with graph.as_default():
        a = ours.constant(1.0)

    def build() -> None:
        with graph.as_default():
            for _ in range(200):
                ours.identity(a)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ops = graph.get_operations()
    assert [op.id for op in ops] == list(range(1601))
    assert len({op.name for op in ops}) == 1601
    assert a.consumers() == ops[1:]


def test_reset_replaces_the_global_graph() -> None:
    before = ours.get_default_graph()
    ours.reset_default_graph()
    assert ours.get_default_graph() is not before
    ours.reset_default_graph()


def test_a_block_may_be_entered_again() -> None:
    with ours.Graph().as_default():
        block = ours.device("/gpu:1")
        for _ in range(2):
            with block:
                assert ours.no_op().device == "/device:GPU:1"
        assert ours.no_op().device == ""
