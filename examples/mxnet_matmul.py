"""A matrix product in C for MXNet arrays, as TVM's `to_mxnet_func` made them.

TVM has dropped `to_mxnet_func`; dlbridge has it. Needs mxnet, which lives in an environment of its
own (Python 3.11 at most, NumPy 1): TVM does not, so the kernel is in C here.
"""

from __future__ import annotations

import mxnet
import numpy as np

import dlbridge

SIZE = 56

SOURCE = r"""
#include <string.h>
#include "dlpack.h"

int matmul(void *context, DLTensor *t, int count) {
    const float *a = t[0].data, *b = t[1].data;
    float *c = t[2].data;
    int64_t m = t[0].shape[0], depth = t[0].shape[1], n = t[1].shape[1];
    (void)context, (void)count;
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < n; j++)
                c[i * n + j] += a[i * depth + k] * b[k * n + j];
    return 0;
}
"""

matmul = dlbridge.compile_c(
    SOURCE, "matmul", "examples::mxnet_matmul(a: f32[m, k], b: f32[k, n]) -> f32[m, n]"
)

a = mxnet.nd.random.normal(shape=(SIZE, SIZE))
b = mxnet.nd.random.normal(shape=(SIZE, SIZE))
expected = mxnet.nd.dot(a, b).asnumpy()

product = matmul(a, b)
assert type(product) is type(a)
np.testing.assert_allclose(product.asnumpy(), expected, rtol=1e-4, atol=1e-4)

as_tvm_did = dlbridge.to_mxnet_func(matmul)
destination = mxnet.nd.zeros((SIZE, SIZE))
as_tvm_did(a, b, out=destination)
np.testing.assert_allclose(destination.asnumpy(), expected, rtol=1e-4, atol=1e-4)

print(f"A {SIZE} by {SIZE} product in C agrees with mxnet.nd.dot, new and into an array.")
