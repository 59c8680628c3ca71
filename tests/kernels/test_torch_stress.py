"""Many operators, many threads, the pool's end."""

from __future__ import annotations

import threading

import pytest
from kernels.torch_samples import make_mul

import dlbridge


@pytest.fixture
def torch(framework):
    return framework("torch")


def test_eight_threads_mix_eager_compiled_and_backward(torch) -> None:
    kernels = [make_mul("stress", f"mul{index}") for index in range(4)]
    python = dlbridge.wrap(
        lambda x: x * x, "stress::square(x: f64[...]) -> f64[...]", abi="python:numpy",
        vjp=lambda x, grad: 2 * x * grad,
    )  # fmt: skip
    compiled_ = torch.compile(
        lambda x, y: python(kernels[0](x, y)).sum(), fullgraph=True, backend="aot_eager"
    )
    x, y = (torch.rand(3, 4, dtype=torch.double) for _ in range(2))
    (expected,) = torch.autograd.grad(compiled_(x.requires_grad_(), y), x)
    failures = []

    def work(number: int) -> None:
        mine = x.detach().clone().requires_grad_()
        kernel = kernels[number % 4]
        try:
            for _ in range(20):
                with torch.no_grad():
                    assert torch.equal(kernel(mine, y), mine * y)
                    kernel.torch(mine, y, out=torch.empty_like(y))
                eager = torch.autograd.grad(python(kernel(mine, y)).sum(), mine)[0]
                traced = torch.autograd.grad(compiled_(mine, y), mine)[0]
                assert torch.allclose(eager, expected)
                assert torch.allclose(traced, expected)
                batched = torch.vmap(torch.func.grad(lambda x, y: kernel(x, y).sum()))
                assert torch.equal(batched(mine.detach(), y), y)
                with pytest.raises(dlbridge.ArgumentError):
                    kernel(mine, y[:2])
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_threads_may_ask_for_the_same_operator_first(torch) -> None:
    kernels = [make_mul("stress_first", f"mul{index}") for index in range(20)]
    x = torch.ones(3, dtype=torch.double, requires_grad=True)
    failures = []
    barrier = threading.Barrier(8)

    def work() -> None:
        for kernel in kernels:
            barrier.wait(30)
            try:
                assert torch.equal(torch.autograd.grad(kernel(x, x.detach()).sum(), x)[0], x)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


@pytest.mark.preloaded("torch")
@pytest.mark.full
def test_more_operators_than_the_pool_has(run_python, framework) -> None:
    """The last ones have bodies in Python; none is slower to call for the others' number."""
    framework("torch")
    out = run_python(
        """
        import torch, dlbridge
        from measuring import instructions
        from dlbridge.frameworks.torch import operators as torch_registry
        from kernels.torch_samples import compiled

        kernel = compiled("nothing", "many::nothing(x!: f32[n])")
        x = torch.ones(4)

        def spent(count):
            def call():
                for number in range(count, count + 100):
                    dlbridge.wrap(kernel, name=f"many::n{number}").torch(x)

            return instructions(call)

        first = min(spent(count) for count in range(0, 500, 100))
        for number in range(500, 8600):
            dlbridge.wrap(kernel, name=f"many::n{number}").torch
        for number in (0, 5000, 8191, 8599):
            getattr(torch.ops.many, f"n{number}")(x)
        assert x._version >= 4
        print(len(torch_registry._NUMBERS), min(spent(c) for c in range(8600, 9100, 100)) / first)
        """,
        timeout=300,
    ).check()
    numbers, ratio = out.split()
    assert int(numbers) == 8192
    assert float(ratio) < 30  # each costs the same: all of them would make it thousands
