"""Tensors on loan to Python kernels: what is kept, what is written, which thread calls."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from interrupts import Interrupt

from dlbridge import from_dlpack
from dlbridge._core import native
from dlbridge.errors import KernelError
from dlbridge.kernels.kinds.python_kernel import Support
from dlbridge.kernels.wrap import wrap

ADD = "loan::add(x: f32[n], y: f32[n]) -> f32[n]"
LOANS = ("numpy", "torch", "dlbridge", "jax")


def run(function, abi, schema=ADD, count=64):
    """Run on fresh arrays, which are overwritten afterwards: what was kept must not change."""
    arrays = [from_dlpack(np.full(count, float(i), "float32")) for i in range(3)]
    aligned = [_aligned(array) for array in arrays]
    try:
        wrap(function, schema, abi=abi).run(aligned, (), "numpy.ndarray")
    finally:
        for tensor in aligned:
            np.asarray(tensor)[...] = -1


def _aligned(tensor):
    made = native.allocate(tensor.shape, tensor.dtype.triple, 64)
    native.copy_into(made, tensor)
    return made


def text(name="y", kernel="loan::add"):
    return f"{kernel} kept '{name}' alive: it is on loan until the function returns; copy it"


# ---- kept --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch", "dlbridge"])
def test_a_kept_argument_is_an_error_and_does_not_dangle(name: str, framework) -> None:
    framework("torch" if name == "torch" else "numpy")
    kept = []
    with pytest.raises(KernelError) as caught:
        run(lambda x, y: (kept.append(y), x)[1], f"python:{name}")
    assert str(caught.value) == text()
    assert np.asarray(kept[0]).tolist() == [1.0] * 64
    kept.clear()


def test_an_interrupt_while_garbage_is_collected_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call ends with it, and what was kept is not read from its old memory."""

    def collect(_self: Support, _: object) -> None:
        raise Interrupt

    monkeypatch.setattr(Support, "collect", collect)
    kept = []
    with pytest.raises(Interrupt):
        run(lambda x, y: (kept.append(y), x)[1], "python:numpy")
    assert kept[0].tolist() == [1.0] * 64
    kept.clear()


def test_a_jax_array_that_is_kept_is_deleted(framework) -> None:
    framework("jax")
    kept = []
    with pytest.raises(KernelError) as caught:
        run(lambda x, y: (kept.append(y), x)[1], "python:jax")
    assert str(caught.value) == text()
    assert kept[0].is_deleted()


def test_views_of_a_torch_tensor_move_along(framework) -> None:
    framework("torch")
    kept = []
    with pytest.raises(KernelError):
        run(lambda x, y: (kept.extend([y, y[8:], y.view(8, 8).T]), x)[1], "python:torch")
    assert [each.unique().tolist() for each in kept] == [[1.0]] * 3
    assert kept[1].data_ptr() - kept[0].data_ptr() == 32
    kept[1].fill_(5)
    assert kept[0][8] == 5


def test_a_view_of_a_torch_tensor_that_is_gone_is_found(framework) -> None:
    framework("torch")
    kept = []
    with pytest.raises(KernelError) as caught:
        run(lambda x, y: (kept.append(y[8:]), x)[1], "python:torch")
    assert str(caught.value) == text()
    assert kept[0].unique().tolist() == [1.0]


def test_a_view_of_a_numpy_array_is_an_error() -> None:
    """It cannot be saved, so nothing is read from it here."""
    kept = []
    with pytest.raises(KernelError) as caught:
        run(lambda x, y: (kept.append(y[8:]), x)[1], "python:numpy")
    assert str(caught.value) == text()
    kept.clear()


def test_the_result_is_on_loan_too(framework) -> None:
    framework("torch")
    kept = []

    def function(x, y, out):
        out.fill_(7)
        kept.append(out)

    with pytest.raises(KernelError) as caught:
        run(function, "python:torch")
    assert str(caught.value) == text("out")
    assert kept[0].unique().tolist() == [7.0]


@pytest.mark.parametrize("name", LOANS)
def test_arguments_that_only_a_cycle_holds_are_collected(name: str, framework) -> None:
    framework("torch" if name == "torch" else "jax" if name == "jax" else "numpy")

    def function(x, y):
        cycle = [y]
        cycle.append(cycle)
        return x

    gc.disable()
    try:
        run(function, f"python:{name}")
    finally:
        gc.enable()


@pytest.mark.parametrize("name", LOANS)
def test_results_and_exceptions_need_no_collection(name: str, framework, monkeypatch) -> None:
    """A full collection takes a hundred milliseconds; jaxlib, say, only puts releases off."""
    framework("torch" if name == "torch" else "jax" if name == "jax" else "numpy")
    from dlbridge.kernels.kinds.python_kernel import Support

    collections = []
    monkeypatch.setattr(Support, "collect", lambda self, _: collections.append(self.name))
    run(lambda x, y: x, f"python:{name}")
    run(lambda x, y: (np.asarray(y) + 1, x)[1], f"python:{name}")
    with pytest.raises(ZeroDivisionError):
        run(lambda x, y: 1 / 0, f"python:{name}")
    assert not collections


def test_a_graph_of_autograd_that_is_dropped_with_the_result_is_no_escape(framework) -> None:
    torch = framework("torch")
    linear = torch.nn.Linear(64, 64)
    run(lambda x, y: linear(x * y), "python:torch")


def test_a_graph_of_autograd_that_is_kept_is_an_escape(framework) -> None:
    torch = framework("torch")
    weight = torch.ones(64, requires_grad=True)
    kept = []

    def function(x, y):
        kept.append(weight * y)
        return x

    with pytest.raises(KernelError) as caught:
        run(function, "python:torch")
    assert str(caught.value) == text()


def test_a_copy_may_be_kept(framework) -> None:
    framework("torch")
    kept = []
    run(lambda x, y: (kept.append(y.clone()), x)[1], "python:torch")
    run(lambda x, y: (kept.append(y.copy()), x)[1], "python:numpy")
    assert [np.asarray(each)[0] for each in kept] == [1, 1]


def test_without_a_schema_arguments_are_called_by_number() -> None:
    kept = []
    kernel = wrap(lambda x, out: kept.append(x), abi="python:numpy")
    with pytest.raises(KernelError, match="kept 'argument 0' alive"):
        kernel.run([from_dlpack(np.ones(3)), from_dlpack(np.zeros(3))])


# ---- written -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "dlbridge"])
def test_writing_what_is_not_declared_is_prevented(name: str) -> None:
    def function(x, y):
        np.asarray(y)[0] = 5

    with pytest.raises(ValueError, match="read-only"):
        run(function, f"python:{name}")


def test_writing_what_is_not_declared_is_found_by_torch(framework) -> None:
    framework("torch")

    def function(x, y):
        y[3:].add_(1)
        return x

    with pytest.raises(KernelError) as caught:
        run(function, "python:torch")
    assert str(caught.value) == (
        "loan::add wrote into 'y', which is not declared to be written; mark it with ! in the "
        "schema, or copy it first (its values have changed)"
    )


def test_declared_arguments_may_be_written(framework) -> None:
    framework("torch")
    schema = "loan::both(x: f32[n], y!: f32[n]) -> f32[n]"
    run(lambda x, y: (y.add_(1), x)[1], "python:torch", schema)


def test_inference_mode_counts_no_versions(framework) -> None:
    torch = framework("torch")
    with torch.inference_mode():
        run(lambda x, y: x + y, "python:torch")


# ---- threads -----------------------------------------------------------------------------------


def test_kernels_run_on_threads_that_python_does_not_know(framework) -> None:
    """XLA's threads, several calls at a time, with large arrays that are computed later."""
    framework("torch")
    jax = framework("jax")
    kernel = wrap(
        lambda x, y: x @ y, "loan::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]", abi="python:torch"
    )
    x = jax.numpy.ones((400, 400)) / 20
    function = jax.jit(lambda x: kernel(x, x) + kernel(kernel(x, x + 1), x))
    expected = np.asarray(x @ x + (x @ (x + 1)) @ x)
    failures = []

    def work() -> None:
        for _ in range(5):
            if not np.allclose(function(x), expected, rtol=1e-3):
                failures.append("wrong")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


@pytest.mark.subprocess
@pytest.mark.parametrize("size", [8, pytest.param(500, marks=pytest.mark.full)])
def test_jax_functions_inside_of_jax_do_not_wait_for_themselves(
    size: int, framework, run_python
) -> None:
    """A NumPy kernel in a jitted function calls a kernel of JAX arrays; JAX alone would hang."""
    framework("jax")
    code = f"""
        import faulthandler; faulthandler.dump_traceback_later(100, exit=True)
        import threading, jax, numpy as np, jax.numpy as jnp
        from dlbridge.kernels.wrap import wrap
        inner = wrap(lambda x: x @ x, "loan::inner(x: f32[n, n]) -> f32[n, n]", abi="python:jax")
        outer = wrap(lambda x: inner(x) + 1, "loan::outer(x: f32[n, n]) -> f32[n, n]",
                     abi="python:numpy")
        x = jnp.ones(({size}, {size})) / {size}
        f = jax.jit(lambda x: outer(x) + outer(x + 1) + outer(outer(x) + 2))
        def work():
            for _ in range(3):
                f(x).block_until_ready()
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads], [t.join() for t in threads]
        a = np.asarray(x)
        e = lambda a: a @ a + 1
        print(np.allclose(f(x), e(a) + e(a + 1) + e(e(a) + 2), rtol=1e-4))
    """
    assert run_python(code).check() == "True\n"


def test_where_there_are_no_spare_threads_jax_inside_of_jax_is_refused(
    framework, monkeypatch
) -> None:
    jax = framework("jax")
    from dlbridge.frameworks.jax import binding as python_support

    monkeypatch.setattr(python_support, "_spare_device", lambda: None)
    inner = wrap(lambda x: x, "loan::refused(x: f32[n]) -> f32[n]", abi="python:jax")
    outer = wrap(lambda x: inner(x), "loan::refuser(x: f32[n]) -> f32[n]", abi="python:numpy")
    with pytest.raises(Exception, match="it would wait for itself"):
        jax.jit(lambda x: outer(x))(jax.numpy.ones(4)).block_until_ready()


def test_a_jax_kernel_called_while_jax_traces_computes_at_once(framework) -> None:
    jax = framework("jax")
    kernel = wrap(lambda x: x + 1, "loan::now(x: f32[n]) -> f32[n]", abi="python:jax")
    seen = []

    @jax.jit
    def function(x):
        seen.append(kernel(np.ones(3, "float32")))
        return x

    function(jax.numpy.ones(3))
    assert seen[0].tolist() == [2, 2, 2]
