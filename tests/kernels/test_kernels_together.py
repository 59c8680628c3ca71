"""Thousands of kernels and many threads: nothing hangs, nothing grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.full

KERNELS = 5000

PRELUDE = f"""
    import faulthandler, gc, sys, threading
    from measuring import peak_of_process
    import numpy as np, torch, jax, jax.numpy as jnp
    import dlbridge
    from dlbridge._core import native

    faulthandler.dump_traceback_later(240, exit=True)
    SOURCE = '''
    #include "dlbridge_kernel.h"
    int square(void *ctx, DLTensor *a, int n) {{
        const float *x = a[0].data;
        float *out = a[1].data;
        (void)ctx, (void)n;
        for (int64_t i = 0; i < a[0].shape[0]; i++)
            out[i] = x[i] * x[i];
        return 0;
    }}
    '''
    kernels = []
    first = dlbridge.compile_c(SOURCE, "square")

    def make(i):
        def vjp(x, grad):
            return 2 * x * grad
        schema = f"together::square{{i}}(x: f32[n]) -> f32[n]"
        return dlbridge.wrap(first, schema, vjp=vjp, layout="contiguous")

    kernels = [make(i) for i in range({KERNELS})]
"""


@pytest.mark.preloaded("torch")
def test_thousands_of_kernels_are_each_their_own(
    run_python: Callable[..., Any], framework: Callable[[str], Any]
) -> None:
    """jax-tvm-ffi ends at 1,024 kernels."""
    framework("torch")
    framework("jax")
    code = (
        PRELUDE
        + """
    x = np.arange(3, dtype=np.float32)
    for kernel in kernels:
        assert kernel(x).tolist() == [0, 1, 4]
    t = torch.arange(3.0, requires_grad=True)
    for kernel in kernels[::50]:
        (gradient,) = torch.autograd.grad(kernel(t).sum(), t)
        assert gradient.tolist() == [0, 2, 4], gradient
    j = jnp.arange(3.0)
    chosen = kernels[::250]
    assert jax.jit(lambda x: sum(kernel(x) for kernel in chosen))(j).tolist() == [0, 20, 80]
    print("ok", len({kernel.name for kernel in kernels}))
    """
    )
    assert run_python(code, timeout=300).check().split() == ["ok", str(KERNELS)]


@pytest.mark.preloaded("torch")
def test_eight_threads_mix_eager_compiled_and_differentiated_calls(
    run_python: Callable[..., Any], framework: Callable[[str], Any]
) -> None:
    """The GIL, XLA's pool, torch's autograd threads and our registry do not deadlock."""
    framework("torch")
    framework("jax")
    code = (
        PRELUDE
        + """
    python_kernel = dlbridge.wrap(
        lambda x: x * x, "together::python(x: f32[n]) -> f32[n]", abi="python:torch"
    )
    failures = []

    def check(got, want):
        if [float(value) for value in got] != want:
            failures.append((got, want))

    def eager_numpy(i):
        check(kernels[i % 5000](np.arange(3, dtype=np.float32)), [0, 1, 4])

    def eager_torch(i):
        check(kernels[i % 7](torch.arange(3.0)), [0, 1, 4])

    def torch_gradient(i):
        x = torch.arange(3.0, requires_grad=True)
        kernels[i % 7](x).sum().backward()
        check(x.grad, [0, 2, 4])

    compiled = torch.compile(lambda x: kernels[3](x) + 1, backend="aot_eager", fullgraph=True)
    compiled(torch.arange(3.0, requires_grad=True)).sum().backward()
    compiled(torch.arange(3.0))

    def torch_compiled(i):
        x = torch.arange(3.0, requires_grad=True)
        compiled(x).sum().backward()
        check(x.grad, [0, 2, 4])

    jitted = jax.jit(lambda x: kernels[5](x) + python_kernel(x))
    gradient = jax.jit(jax.grad(lambda x: kernels[6](x).sum()))

    def jax_eager(i):
        check(kernels[i % 5](jnp.arange(3.0)), [0, 1, 4])

    def jax_jitted(i):
        check(jitted(jnp.arange(3.0)), [0, 2, 8])

    def jax_gradient(i):
        check(gradient(jnp.arange(3.0)), [0, 2, 4])

    def wrap_again(i):
        make(i % 5)

    work = [eager_numpy, eager_torch, torch_gradient, torch_compiled,
            jax_eager, jax_jitted, jax_gradient, wrap_again]

    def run(calls):
        def loop(function):
            for i in range(calls):
                function(i)
        threads = [threading.Thread(target=loop, args=(function,)) for function in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        return native.live()

    run(200)
    before = run(200)
    sizes = [peak_of_process()]
    for _ in range(3):
        after = run(200)
        sizes.append(peak_of_process())
    assert not failures, failures[:3]
    assert before == after, (before, after)
    # A leak grows in each round; heaps of threads and caches may grow in one.
    assert min(b - a for a, b in zip(sizes, sizes[1:])) < 8 << 20, sizes
    print("ok")
    """
    )
    assert run_python(code, timeout=300).check().split() == ["ok"]
