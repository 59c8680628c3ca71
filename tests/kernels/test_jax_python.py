"""Python functions of any framework as kernels of JAX: in jit, from threads, with failures."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import numpy as np
import pytest

from dlbridge.errors import ArgumentError, KernelError, UnsupportedTypeError
from dlbridge.kernels.wrap import wrap


class OddError(LookupError):
    """One that nobody else raises."""


def raising(x: Any) -> Any:
    raise OddError("for a reason")


def test_the_exception_itself_arrives_in_eager_calls(jax: Any, jnp: Any) -> None:
    """With its type and its traceback; within a program of the user's its text arrives."""
    kernel = wrap(raising, "jaxpython::raising(x: f32[n]) -> f32[n]", abi="python:numpy")
    x = jnp.ones(3)
    for call in (kernel.jax, kernel, kernel.jax):
        with pytest.raises(OddError, match="for a reason") as caught:
            call(x)
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "raising" in names
    with pytest.raises((RuntimeError, ValueError), match="OddError: for a reason"):
        jax.jit(kernel.jax)(x).block_until_ready()


def test_wrong_results_of_a_python_kernel_are_told(jnp: Any) -> None:
    schema = "jaxpython::wrong(x: f32[n]) -> f32[n]"
    x = jnp.ones(3)
    for function, kind in [
        (lambda x: x[:2], ArgumentError),
        (lambda x: x.astype("float64"), UnsupportedTypeError),
    ]:
        with pytest.raises(kind, match="jaxpython::wrong: result 'out'"):
            wrap(function, schema, abi="python:numpy").jax(x)


def test_a_tensor_that_outlives_the_call_is_an_error(jnp: Any) -> None:
    kept: list[Any] = []
    kernel = wrap(
        lambda x: kept.append(x) or x * 2,
        "jaxpython::keeping(x: f32[n]) -> f32[n]",
        abi="python:numpy",
    )
    with pytest.raises(KernelError, match="kept"):
        kernel.jax(jnp.ones(3))
    kept.clear()


def test_inputs_cannot_be_written(jnp: Any) -> None:
    def write(x: Any) -> Any:
        x[0] = 9
        return x

    kernel = wrap(write, "jaxpython::writing(x: f32[n]) -> f32[n]", abi="python:numpy")
    x = jnp.ones(3)
    with pytest.raises(ValueError, match="read-only"):
        kernel.jax(x)
    assert x.tolist() == [1, 1, 1]


def test_a_torch_function_inside_jit_with_gradients(framework: Any, jax: Any, jnp: Any) -> None:
    torch = framework("torch")
    kernel = wrap(
        lambda x, w, *, scale: torch.tanh(x @ w) * scale,
        "jaxpython::layer(x: f32[n, k], w: f32[k, m], *, scale: float = 1.0) -> f32[n, m]",
        abi="python:torch",
        vjp="torch",
    )
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=size), "float32") for size in ((3, 4), (4, 2)))
    ours = jax.jit(jax.grad(lambda x, w: (kernel.jax(x, w, scale=2.0) ** 2).sum(), (0, 1)))
    theirs = jax.grad(lambda x, w: ((2.0 * jnp.tanh(x @ w)) ** 2).sum(), (0, 1))
    for found, wanted in zip(ours(x, w), theirs(x, w), strict=True):
        assert np.allclose(found, wanted, atol=1e-4)


def test_a_jax_function_is_traced_as_it_is(jax: Any, jnp: Any) -> None:
    """JAX differentiates and batches it; no foreign call is left in the program."""
    kernel = wrap(
        lambda x, *, power: x**power,
        "jaxpython::power(x: f32[n], *, power: float = 2.0) -> f32[n]",
        abi="python:jax",
    )
    x = jnp.arange(1.0, 4.0)
    assert kernel.jax(x).tolist() == [1, 4, 9]
    assert kernel(x, power=3.0).tolist() == [1, 8, 27]
    assert jax.grad(lambda x: kernel.jax(x).sum())(x).tolist() == [2, 4, 6]
    assert jax.vmap(kernel.jax)(x[None]).tolist() == [[1, 4, 9]]
    assert jax.grad(lambda p: kernel.jax(x, power=p)[1])(2.0) > 2
    assert "dlbridge" not in jax.jit(kernel.jax).lower(x).as_text()
    with pytest.raises(ArgumentError, match=r"expected f32\[n\], got f32\[1, 3\]"):
        kernel.jax(x[None])


def test_a_jax_function_that_returns_something_else_is_refused(jnp: Any) -> None:
    schema = "jaxpython::other(x: f32[n]) -> f32[n]"
    for function, kind in [
        (lambda x: x[:1], ArgumentError),
        (lambda x: (x, x), UnsupportedTypeError),
        (lambda x: 3, UnsupportedTypeError),
    ]:
        with pytest.raises(kind, match="jaxpython::other"):
            wrap(function, schema, abi="python:jax").jax(jnp.ones(3))


PARALLEL = """
    import threading
    import jax, jax.numpy as jnp, numpy as np
    from dlbridge.kernels.wrap import wrap

    def work(x):
        sum(range(200))
        return x + 1

    kernel = wrap(work, "jaxpython::work(x: f32[n]) -> f32[n]", abi="python:numpy")
    # Wide enough that XLA runs the calls on threads of its own.
    wide = jax.jit(lambda x: sum(kernel.jax(x * i) for i in range(16)))
    x = jnp.ones(1000)
    big = jnp.ones((400, 400))
    chain = jax.jit(lambda x: kernel.jax((x @ x @ x)[0]).sum())
    wrong = []

    def run():
        for _ in range(200):
            out = wide(x)
            chain(big)
            if float(out[0]) != 136:
                wrong.append(out)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("wrong", len(wrong))
"""


@pytest.mark.preloaded("jax")
@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.usefixtures("jax")
def test_the_gil_and_the_threads_of_xla_do_not_block_each_other(run_python: Any) -> None:
    assert run_python(PARALLEL, timeout=120).check().strip() == "wrong 0"


def test_failures_of_several_threads_stay_apart(jnp: Any) -> None:
    """Each thread gets the exception of its own call."""

    def fail(x: Any) -> Any:
        raise OddError(int(x[0]))

    kernel = wrap(fail, "jaxpython::fail_alone(x: f32[n]) -> f32[n]", abi="python:numpy")
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = jnp.full(2, float(number))
        for _ in range(200):
            try:
                kernel.jax(x)
                wrong.append("no error")
            except Exception as error:
                if type(error) is not OddError or error.args != (number,):
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
