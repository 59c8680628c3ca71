"""Numbers as results: tensors without dimensions, and the numbers of Python made of them."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge

SOURCE = """
#include <stdint.h>

void count(const float *x, int64_t n, int32_t *out, double above) {
    *out = 0;
    for (int64_t i = 0; i < n; i++)
        *out += x[i] > above;
}
"""
X = np.array([0.25, 0.75, 1.0, 0.5], np.float32)


@pytest.fixture(scope="module")
def count():
    return dlbridge.compile_c(
        SOURCE,
        "count",
        "numbers::count(x: f32[n], *, above: float) -> i32[]",
        abi="void(const float *x, int64_t n, int32_t *out, double above)",
    )


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_a_result_without_dimensions_is_a_number_of_python(count, framework, name):
    framework(name)
    k = count(dlbridge.convert(X, name), above=0.5)
    assert (int(k), bool(k), float(k)) == (2, True, 2.0)
    assert int(count(dlbridge.convert(X[:0], name), above=0.5)) == 0


def test_torch_goes_on_with_the_number_as_a_size(count, framework):
    torch = framework("torch")

    def head(x):
        k = count(x, above=0.5).item()
        torch._check_is_size(k)  # older torch needs more than k >= 0
        torch._check(k <= x.shape[0])
        return x.sort(descending=True).values.narrow(0, 0, k)

    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for x in (torch.from_numpy(X), torch.arange(3.0)):
            assert torch.equal(compiled(x), head(x))

    class Head(torch.nn.Module):
        def forward(self, x):
            return head(x)

    exported = torch.export.export(Head(), (torch.from_numpy(X),))
    assert exported.module()(torch.from_numpy(X)).tolist() == [1.0, 0.75]


def test_jax_and_tensorflow_compute_with_the_tensor_in_compiled_programs(count, framework):
    jax, tf = framework("jax"), framework("tensorflow")
    doubled = jax.jit(lambda x: 2 * count(x, above=0.5))
    assert int(doubled(X)) == 4
    assert jax.vmap(lambda x: count(x, above=0.5))(np.stack([X, X + 1])).tolist() == [2, 4]
    assert int(tf.function(lambda x: 2 * count(x, above=0.5))(tf.constant(X))) == 4
