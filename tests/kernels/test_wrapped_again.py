"""A name that is wrapped again: each kernel keeps its own function and derivatives, everywhere."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge

pytestmark = pytest.mark.timeout(180)

Pair = tuple[float, float]


def make(name: str, factor: int, made_of: str = "C") -> dlbridge.Kernel:
    """Return a kernel whose value and gradient both tell which one it is."""
    schema = f"wrapped_again::{name}(x: f32[n]) -> f32[n]"
    if made_of == "Python":
        return dlbridge.wrap(
            lambda x: factor * x, schema, abi="python:numpy", vjp=lambda grad: factor * grad
        )
    source = f"""
        #include "dlbridge_kernel.h"
        int scale(void *context, DLTensor *args, int count) {{
            const float *x = args[0].data;
            float *out = args[1].data;
            for (int64_t i = 0; i < args[0].shape[0]; i++)
                out[i] = {factor} * x[i];
            return 0;
        }}
    """
    return dlbridge.compile_c(source, "scale", schema, vjp=lambda grad: factor * grad)


# ---- value and gradient, in each framework -------------------------------------------------------


def jax_ways(kernel: dlbridge.Kernel) -> dict[str, Callable[[], Pair]]:
    import jax
    from jax import numpy as jnp

    both = jax.value_and_grad(lambda x: kernel(x).sum())
    jitted, own = jax.jit(both), jax.value_and_grad(lambda x: kernel.jax(x).sum())

    def run(function: Any) -> Pair:
        value, gradient = function(jnp.ones(1))
        return float(value), float(gradient[0])

    return {
        "eager": lambda: run(both),
        "jit": lambda: run(jitted),
        "its function": lambda: run(own),
        "vmap": lambda: run(lambda x: jax.tree.map(lambda y: y[0], jax.vmap(both)(x[None]))),
    }


def tensorflow_ways(kernel: dlbridge.Kernel) -> dict[str, Callable[[], Pair]]:
    import tensorflow

    def both(x: Any) -> Any:
        with tensorflow.GradientTape() as tape:
            tape.watch(x)
            value = tensorflow.reduce_sum(kernel(x))
        return value, tape.gradient(value, x)

    graph = tensorflow.function(both)

    def run(function: Any) -> Pair:
        value, gradient = function(tensorflow.ones(1))
        return float(value), float(gradient[0])

    return {"eager": lambda: run(both), "tf.function": lambda: run(graph)}


def torch_ways(kernel: dlbridge.Kernel) -> dict[str, Callable[[], Pair]]:
    import torch

    operator = getattr(torch.ops.wrapped_again, kernel.key.partition("::")[2])
    compiled = torch.compile(lambda x: kernel(x).sum(), fullgraph=True, backend="aot_eager")

    def run(function: Any) -> Pair:
        x = torch.ones(1, requires_grad=True)
        value = function(x).sum()
        value.backward()
        assert x.grad is not None
        return value.item(), x.grad.item()

    def transformed() -> Pair:
        gradient, value = torch.func.grad_and_value(lambda x: kernel(x).sum())(torch.ones(1))
        return value.item(), gradient.item()

    return {
        "eager": lambda: run(kernel),
        "torch.compile": lambda: run(compiled),
        "its function": lambda: run(kernel.torch),
        "torch.ops": lambda: run(operator),
        "torch.func": transformed,
    }


WAYS = {"jax": jax_ways, "tensorflow": tensorflow_ways, "torch": torch_ways}


@pytest.mark.parametrize("made_of", ["C", "Python"])
@pytest.mark.parametrize("framework_name", WAYS)
def test_each_kernel_of_a_name_keeps_its_function_and_its_derivative(
    framework: Any, framework_name: str, made_of: str
) -> None:
    """Programs that were compiled before, the objects themselves, and what comes afterwards."""
    framework(framework_name)
    ways = WAYS[framework_name]
    name = f"{framework_name}_{made_of}"
    first = make(name, 2, made_of)
    of_first = ways(first)
    expected = dict.fromkeys(of_first, (2, 2))
    assert {way: run() for way, run in of_first.items()} == expected
    second, third = make(name, 3, made_of), make(name, 4, made_of)  # nobody ever used the second
    of_third = ways(third)
    assert {way: run() for way, run in of_third.items()} == dict.fromkeys(of_third, (4, 4))
    assert {way: run() for way, run in of_first.items()} == expected
    afresh = ways(first)
    assert {way: run() for way, run in afresh.items()} == dict.fromkeys(afresh, (2, 2))
    x = np.ones(1, "f4")
    assert [float(kernel(x)[0]) for kernel in (first, second, third)] == [2, 3, 4]


def test_the_kernel_of_a_name_is_the_last_one() -> None:
    """For pickles, and for whoever looks it up."""
    first, second = make("last", 2), make("last", 3)
    assert pickle.loads(pickle.dumps(second)) is second
    with pytest.raises(dlbridge.KernelError, match="another was wrapped under its name since"):
        pickle.dumps(first)


def test_a_kernel_that_no_program_holds_goes_with_its_last_user() -> None:
    for _ in range(3):
        kernel = make("gone", 2)
        assert kernel.key == "wrapped_again::gone"
        assert kernel(np.ones(1, "f4")).tolist() == [2]
        gone = weakref.ref(kernel)
        del kernel
        make("gone", 3)
        gc.collect()
        assert gone() is None


SAVE = {
    "jax": """
        from jax import export, numpy as jnp
        import jax
        kernel(jnp.ones(2))
        kernel = make(3)
        checks = [export.DisabledSafetyCheck.custom_call("dlbridge")]
        made = export.export(jax.jit(kernel), disabled_checks=checks)(jnp.ones(2))
        open(sys.argv[1], "wb").write(made.serialize())
    """,
    "torch": """
        import torch
        kernel.torch(torch.ones(2))
        kernel = make(3)
        class Module(torch.nn.Module):
            def forward(self, x):
                return kernel(x)
        torch.export.save(torch.export.export(Module(), (torch.ones(2),)), sys.argv[1])
    """,
}
LOAD = {
    "jax": """
        from jax import export, numpy as jnp
        program = export.deserialize(open(sys.argv[1], "rb").read())
        print(program.call(jnp.ones(2)).tolist())
    """,
    "torch": """
        import torch
        print(torch.export.load(sys.argv[1]).module()(torch.ones(2)).tolist())
    """,
}


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.preloaded(name)) for name in SAVE]
)
def test_a_saved_program_of_a_name_wrapped_again_runs_in_another_process(
    framework: Any, run_python: Any, tmp_path: Any, name: str
) -> None:
    """As from a notebook whose cell ran twice: there, the name was wrapped once."""
    framework(name)
    if name == "jax":
        pytest.importorskip("jax.export")
        pytest.importorskip("flatbuffers")
    start = """
        import sys, dlbridge
        def make(by):
            return dlbridge.wrap(
                lambda x: x * by, "saved_again::scale(x: f32[n]) -> f32[n]", abi="python:numpy"
            )
        kernel = make(2)
    """
    path = tmp_path / "program.pt2"
    run_python(start + SAVE[name], path).check()
    assert run_python(start + LOAD[name], path).check().splitlines()[-1] == "[2.0, 2.0]"


@pytest.mark.full
def test_a_graph_keeps_its_kernel() -> None:
    import dlbridge.graph as tf

    first = make("graph", 2)
    with tf.Graph().as_default(), tf.Session() as session:
        y = tf.call(first, [tf.constant([1.0])])
        second = make("graph", 3)
        z = tf.call(second, [tf.constant([1.0])])
        assert [float(each[0]) for each in session.run([y, z])] == [2, 3]
