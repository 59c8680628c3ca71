"""What is refused while torch.compile traces: the text reaches the caller, as in eager code."""

from __future__ import annotations

import pytest

import dlbridge
from dlbridge.errors import DLBridgeError

torch = pytest.importorskip("torch")

SOURCE = """
#include <stdint.h>

void axpy(const float *x, const float *y, int64_t n, float *out, double alpha) {
    for (int64_t i = 0; i < n; i++)
        out[i] = alpha * x[i] + y[i];
}
"""


def in_c():
    return dlbridge.compile_c(
        SOURCE,
        "axpy",
        "refusals::axpy(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]",
        abi="void(const float *x, const float *y, int64_t n, float *out, double alpha)",
    )


def of_torch():
    return dlbridge.wrap(
        lambda x, y, *, alpha: alpha * x + y,
        "refusals::axpy(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]",
        abi="python:torch",
    )


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


X = torch.ones(3)

CALLS = {
    "a missing argument": lambda k: k(X),
    "None": lambda k: k(X, None),
    "one too many": lambda k: k(X, X, X),
    "an unknown name": lambda k: k(X, X, beta=2.0),
    "text for a number": lambda k: k(X, X, alpha="a"),
    "a list for a tensor": lambda k: k(X, X, alpha=[1.0]),
    "a dtype": lambda k: k(X, X.double()),
    "a rank": lambda k: k(X, X[None]),
    "two for one out": lambda k: k(X, X, out=(X, X)),
}


def refusal_of(function, kernel):
    with pytest.raises(DLBridgeError) as raised:
        function(kernel)
    return raised.value


@pytest.mark.parametrize("make", [in_c, of_torch])
@pytest.mark.parametrize("call", CALLS)
def test_the_text_is_that_of_eager_code(make, call):
    kernel = make()
    expected = refusal_of(CALLS[call], kernel)
    compiled = torch.compile(lambda: CALLS[call](kernel), fullgraph=True, backend="eager")
    with pytest.raises(Exception) as raised:
        compiled()
    text = str(raised.value).replace("\\'", "'")
    assert str(expected).partition(", got")[0] in text


@pytest.mark.parametrize("make", [in_c, of_torch])
@pytest.mark.parametrize("call", ["a missing argument", "an unknown name", "text for a number"])
def test_without_fullgraph_the_exception_is_that_of_eager_code(make, call):
    kernel = make()
    compiled = torch.compile(lambda: CALLS[call](kernel), backend="eager")
    error, expected = refusal_of(lambda _: compiled(), kernel), refusal_of(CALLS[call], kernel)
    assert (type(error), str(error)) == (type(expected), str(expected))


def test_dynamic_sizes_and_numbers_do_not_recompile():
    kernel = of_torch()
    programs = []

    def count(graph, _):
        programs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda x, alpha: kernel(x, x, alpha=alpha), fullgraph=True, dynamic=True, backend=count
    )
    for size, alpha in ((3, 2.0), (5, 3.0), (7, 4.0)):
        x = torch.arange(float(size))
        assert torch.equal(compiled(x, alpha), (alpha + 1) * x)
    assert len(programs) <= 2


def test_a_flag_that_is_not_a_bool_is_named():
    kernel = dlbridge.wrap(
        lambda x, *, save: (x + 1, x + 2 if save else None),
        "refusals::both(x: f32[n], *, save: bool = False) -> (y: f32[n], z: f32[n]? if save)",
        abi="python:torch",
    )
    for call in (lambda: kernel(X, save=3), lambda: kernel(X.double(), save=True)):
        expected = refusal_of(lambda _, call=call: call(), kernel)
        with pytest.raises(Exception) as raised:
            torch.compile(call, fullgraph=True, backend="eager")()
        assert str(expected).partition(", got")[0] in str(raised.value).replace("\\'", "'")
