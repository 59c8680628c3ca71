"""One name for one thing: frameworks by any of their names, `to` everywhere, the nearest name."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge import ArgumentError, registry
from dlbridge.exchange import adapter
from dlbridge.text import did_you_mean

NAMES = [("NumPy", "numpy"), ("np", "numpy"), ("pytorch", "torch"), ("Torch", "torch")]
NAMES += [("PyTorch", "torch"), ("tf", "tensorflow"), ("TensorFlow", "tensorflow"), ("jnp", "jax")]
NAMES += [("jaxlib", "jax"), ("tvm_ffi", "tvm"), ("cp", "cupy"), ("pa", "pyarrow")]


@pytest.mark.parametrize(("name", "own"), NAMES)
def test_a_framework_has_its_own_name_and_those_as_which_it_is_imported(
    name: str, own: str
) -> None:
    assert registry.row(name) is registry.row(own)
    assert registry.adapter(name) is registry.adapter(own)


def array() -> Any:
    return np.arange(3, dtype="float32")


def graph_of_one() -> Any:
    with tf.Graph().as_default():
        return tf.constant([1.0, 2.0]) * 2.0


def in_graph(framework: str) -> Any:
    with tf.Graph().as_default() as graph:
        with tf.framework(framework):
            y = tf.constant([1.0]) * 2.0
        assert y.op.framework == "torch"
        with tf.Session(graph=graph) as session:
            return session.run(y, to=framework)


def wrapped(framework: str) -> Any:
    kernel = dlbridge.wrap(
        lambda x: x * 2, "dlbridge_tests::named(x: f32[n]) -> f32[n]", abi=f"python:{framework}"
    )
    return dlbridge.to_torch(kernel(array()))


def session(framework: str) -> Any:
    y = graph_of_one()
    with tf.Session(graph=y.graph, framework=framework) as made:
        assert made.framework == "torch"
        return made.make_callable(y, to=framework)()


@pytest.mark.parametrize(
    "call",
    [
        lambda name: dlbridge.convert(array(), name),
        lambda name: dlbridge.convert(array(), to=name),
        lambda name: dlbridge.convert(array(), copy=True, to=name, readonly="copy"),
        lambda name: dlbridge.convert_tree([array()], to=name)[0],
        in_graph,
        wrapped,
        session,
    ],
)
@pytest.mark.parametrize("name", ["torch", "PyTorch"])
def test_it_is_understood_wherever_a_framework_is_named(
    framework: Any, call: Callable[[str], Any], name: str
) -> None:
    torch = framework("torch")
    assert type(call(name)) is torch.Tensor


def test_explain_and_dtypes_understand_it_as_well(framework: Any) -> None:
    torch = framework("torch")
    assert dlbridge.explain(array(), to="pytorch").target == "torch"
    assert dlbridge.float32.to("PyTorch") is torch.float32
    assert dlbridge.Device("cpu").to("pytorch") == torch.device("cpu")


def test_as_is_still_another_name_of_to(framework: Any) -> None:
    torch = framework("torch")
    y = graph_of_one()
    with tf.Session(graph=y.graph) as made:
        assert type(made.run(y, as_="torch")) is torch.Tensor
        assert type(made.make_callable(y, as_="torch")()) is torch.Tensor


@pytest.mark.parametrize("name", ["torhc", "Tensorfow", "nunpy"])
def test_an_unknown_framework_gets_the_nearest_name(name: str) -> None:
    nearest = {"torhc": "torch", "Tensorfow": "tensorflow", "nunpy": "numpy"}[name]
    y = graph_of_one()
    for call in (
        lambda: dlbridge.convert(array(), name),
        lambda: dlbridge.explain(array(), name),
        lambda: dlbridge.convert_tree([], name),
        lambda: dlbridge.float32.to(name),
        lambda: tf.Session(graph=y.graph).run(y, to=name),
    ):
        with pytest.raises(ArgumentError, match=rf"unknown framework .*did you mean '{nearest}'\?"):
            call()
    with pytest.raises(ArgumentError, match=r"'torhc' runs no nodes; .*did you mean 'torch'"):
        tf.Session(graph=y.graph, framework="torhc")
    with pytest.raises(ArgumentError, match="did you mean 'python:torch'"):
        dlbridge.wrap(len, "dlbridge_tests::f(x: f32[n]) -> f32[n]", abi="python:torhc")


@pytest.mark.full
def test_an_unknown_framework_leaves_the_message_to_the_next_receive() -> None:
    pytest.importorskip("mpi4py")
    pytest.importorskip("torch")
    code = (
        "import numpy as np, dlbridge\n"
        "from dlbridge import mpi\n"
        "sent = mpi.isend(np.ones(3), 0)\n"
        "try:\n"
        "    mpi.recv(0, to='torhc')\n"
        "except dlbridge.ArgumentError as error:\n"
        "    print(error)\n"
        "print(type(mpi.recv(0, to='PyTorch')).__name__)\n"
        "sent.wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.match(r"recv: unknown framework .*did you mean 'torch'\?\nTensor\n", done.stdout)


def test_allocators_are_named_by_any_name_of_their_framework() -> None:
    with pytest.raises(ArgumentError, match="one of driver, cupy, torch, got 'numpy'"):
        dlbridge.set_allocator("cuda", "np")


def test_a_tensor_in_place_of_the_framework_is_named_by_its_type() -> None:
    expected = r"module or array type, got numpy\.ndarray; what is converted comes first"
    with pytest.raises(ArgumentError, match=expected):
        dlbridge.convert("torch", array())


def test_a_call_without_a_target_says_so() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'to'"):
        dlbridge.convert(array())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="multiple values for argument 'to'"):
        dlbridge.convert(array(), "numpy", to="torch")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("policies", "nearest"),
    [
        ({"read_only": "share"}, "readonly"),
        ({"narow": "checked"}, "narrow"),
        ({"readonly": "shared"}, "share"),
        ({"grad": "detached"}, "detach"),
        ({"layout": "contigous"}, "contiguous"),
    ],
)
def test_a_misspelt_policy_gets_the_nearest(policies: Any, nearest: str) -> None:
    for call in (
        lambda: dlbridge.to_numpy(array(), **policies),
        lambda: dlbridge.convert(array(), to="numpy", **policies),
        lambda: dlbridge.explain(array(), to="numpy", **policies),
        lambda: dlbridge.convert_tree([], to="numpy", **policies),
    ):
        with pytest.raises(ArgumentError, match=rf"did you mean '{nearest}'\?"):
            call()


def test_misspelt_options_of_kernels_name_the_call_that_was_made() -> None:
    schema = "dlbridge_tests::g(x: f32[n]) -> f32[n]"
    options: Any = {"vpj": len}
    with pytest.raises(TypeError, match=r"^compile_c\(\) got .* 'vpj'; did you mean 'vjp'\?"):
        dlbridge.compile_c("", "g", schema, **options)
    choice: Any = "allowed"
    with pytest.raises(ArgumentError, match=r"wrap: overlap must be .*did you mean 'allow'"):
        dlbridge.wrap(len, schema, abi="python:numpy", overlap=choice)


def test_a_misspelt_function_gets_the_nearest() -> None:
    with pytest.raises(AttributeError, match="'to_pytorch'; did you mean 'to_torch'"):
        dlbridge.to_pytorch  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'to_tf'; did you mean 'to_tensorflow'"):
        dlbridge.to_tf  # type: ignore[attr-defined]


def test_a_name_like_no_other_gets_no_advice() -> None:
    assert did_you_mean("zzzzzz", ["numpy", "torch"]) == ""


def test_a_framework_that_is_not_installed_names_the_call_and_what_to_install(
    run_python: Callable[..., Any],
) -> None:
    run_python(
        """
        import sys

        import numpy

        sys.modules.update(tensorflow=None, mxnet=None)
        import dlbridge

        x = numpy.ones(3, "float32")
        kernel = dlbridge.wrap(abs, "t::f(x: f32[n]) -> f32[n]", abi="python:numpy")
        extra = "pip install 'dlbridge[tensorflow]'"
        none = "install the package that has its module 'mxnet'"
        for call, begins, ends in [
            (lambda: dlbridge.to_tensorflow(x), "to_tensorflow: tensorflow is not", extra),
            (lambda: dlbridge.convert(x, "tf"), "to_tensorflow: tensorflow is not", extra),
            (lambda: dlbridge.convert_tree([x], "tf"), "convert_tree: tensorflow is not", extra),
            (lambda: dlbridge.explain(x, "tf"), "explain(to tensorflow): ", extra),
            (lambda: dlbridge.float32.to("tf"), "DType.to: tensorflow is not", extra),
            (lambda: kernel.tensorflow(x), "kernel.tensorflow: tensorflow is not", extra),
            (lambda: dlbridge.to_mxnet(x), "to_mxnet: mxnet is not", none),
        ]:
            try:
                call()
            except dlbridge.FrameworkMissingError as error:
                assert str(error).startswith(begins), error
                assert str(error).endswith(f"; {ends}"), error
            else:
                raise SystemExit(f"not refused: {begins}")
        """
    ).check()


def test_the_extras_that_texts_name_exist() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    named = {row.name: adapter.adapter(row.name).extra for row in registry.rows()}
    assert {extra for extra in named.values() if extra} <= set(extras)
    assert all(named[name] == name for name in set(named) & set(extras))
