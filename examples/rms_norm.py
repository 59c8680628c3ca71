"""Fused RMSNorm in C, with its gradient, for PyTorch, JAX, TensorFlow and NumPy.

RMSNorm scales each row of `x` to a root mean square of one, then by `weight`:

    out[i, j] = x[i, j] * r[i] * weight[j],    r[i] = 1 / sqrt(mean(x[i] ** 2) + eps)

Written with the operations of a framework it passes over the memory four times; the kernel below
does it in two, and its gradient likewise. The forward kernel also returns `r`, so that the
gradient need not compute it again: `rms_norm_vjp` takes it as an argument of that name.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

import dlbridge

SOURCE = r"""
#include <math.h>
#include "dlbridge_kernel.h"

/* The loops, once for float and once for double. */
#define RMS_NORM(NAME, REAL)                                                                \
    static void NAME(const REAL *x, const REAL *weight, REAL *out, REAL *r, int64_t rows,   \
                     int64_t n, double eps) {                                               \
        for (int64_t i = 0; i < rows; i++, x += n, out += n) {                              \
            double sum = 0;                                                                 \
            for (int64_t j = 0; j < n; j++)                                                 \
                sum += (double)x[j] * x[j];                                                 \
            r[i] = (REAL)(1 / sqrt(sum / n + eps));                                         \
            for (int64_t j = 0; j < n; j++)                                                 \
                out[j] = x[j] * r[i] * weight[j];                                           \
        }                                                                                   \
    }
RMS_NORM(forward_float, float)
RMS_NORM(forward_double, double)

/* With g = grad * weight: grad_x = r * (g - x * r**2 * mean(g * x)), and
 * grad_weight = the sum over rows of grad * x * r. */
#define RMS_NORM_VJP(NAME, REAL)                                                            \
    static void NAME(const REAL *x, const REAL *weight, const REAL *r, const REAL *grad,    \
                     REAL *grad_x, REAL *grad_weight, int64_t rows, int64_t n) {            \
        for (int64_t j = 0; j < n; j++)                                                     \
            grad_weight[j] = 0;                                                             \
        for (int64_t i = 0; i < rows; i++, x += n, grad += n, grad_x += n) {                \
            double sum = 0, scale = r[i];                                                   \
            for (int64_t j = 0; j < n; j++)                                                 \
                sum += (double)grad[j] * weight[j] * x[j];                                  \
            sum *= scale * scale / n;                                                       \
            for (int64_t j = 0; j < n; j++) {                                               \
                grad_x[j] = (REAL)(scale * (grad[j] * weight[j] - x[j] * sum));             \
                grad_weight[j] += (REAL)(grad[j] * x[j] * scale);                           \
            }                                                                               \
        }                                                                                   \
    }
RMS_NORM_VJP(backward_float, float)
RMS_NORM_VJP(backward_double, double)

static int64_t count_rows(const DLTensor *x) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < x->ndim; i++)
        rows *= x->shape[i];
    return rows;
}

int rms_norm(void *context, DLTensor *t, int count) { /* x, weight -> out, r */
    int64_t n = t[1].shape[0], rows = count_rows(&t[0]);
    double eps = dlb_get_float(context, 0);
    if (count != 4 || n == 0)
        return dlb_set_error(context, "rows of %lld elements have no mean", (long long)n);
    if (t[0].dtype.bits == 32)
        forward_float(t[0].data, t[1].data, t[2].data, t[3].data, rows, n, eps);
    else
        forward_double(t[0].data, t[1].data, t[2].data, t[3].data, rows, n, eps);
    return 0;
}

int rms_norm_vjp(void *context, DLTensor *t, int count) {
    int64_t n = t[1].shape[0], rows = count_rows(&t[0]);
    (void)context, (void)count;
    if (t[0].dtype.bits == 32)
        backward_float(t[0].data, t[1].data, t[2].data, t[3].data, t[4].data, t[5].data,
                       rows, n);
    else
        backward_double(t[0].data, t[1].data, t[2].data, t[3].data, t[4].data, t[5].data,
                        rows, n);
    return 0;
}
"""

rms_norm_vjp = dlbridge.compile_c(
    SOURCE,
    "rms_norm_vjp",
    "examples::rms_norm_vjp(x: f32|f64[*rows, n], weight: f32|f64[n], r: f32|f64[*rows],"
    " grad_out: f32|f64[*rows, n]) -> (grad_x: f32|f64[*rows, n], grad_weight: f32|f64[n])",
)
rms_norm_with_scale = dlbridge.compile_c(
    SOURCE,
    "rms_norm",
    "examples::rms_norm(x: f32|f64[*rows, n], weight: f32|f64[n], *, eps: float = 1e-6)"
    " -> (out: f32|f64[*rows, n], r: f32|f64[*rows])",
    vjp=rms_norm_vjp,
)


def rms_norm(x, weight, eps=1e-6):
    """Return RMSNorm of `x` along its last dimension; tensors of any framework."""
    return rms_norm_with_scale(x, weight, eps=eps)[0]


def reference(x, weight, mean, eps=1e-6):
    """Return the same by the operations of a framework."""
    return x * (mean(x * x) + eps) ** -0.5 * weight


random = np.random.default_rng(0)
x = random.standard_normal((4, 8, 32))
weight = random.standard_normal(32)
expected = reference(x, weight, lambda y: y.mean(-1, keepdims=True))
proved = []

np.testing.assert_allclose(rms_norm(x, weight), expected, rtol=1e-10)
narrow = rms_norm(x.astype("float32"), weight.astype("float32"))
np.testing.assert_allclose(narrow, expected, rtol=1e-4, atol=1e-5)
proved.append("NumPy")

if find_spec("torch"):
    import torch

    a, w = (torch.from_numpy(array).requires_grad_() for array in (x, weight))
    torch.testing.assert_close(rms_norm(a, w), torch.rms_norm(a, (32,), w, 1e-6))
    small = a[:1, :2, :5].detach().requires_grad_(), w[:5].detach().requires_grad_()
    assert torch.autograd.gradcheck(rms_norm, small)
    proved.append("PyTorch with gradcheck")

    def loss(a, w):
        return (rms_norm(a, w) ** 3).sum()

    loss(a, w).backward()
    eager = a.grad.clone()
    a.grad = None
    torch.compile(loss, fullgraph=True, backend="aot_eager")(a, w).backward()
    torch.testing.assert_close(a.grad, eager)
    proved.append("torch.compile, forward and backward")

if find_spec("jax"):
    import jax
    from jax.test_util import check_grads

    jax.config.update("jax_enable_x64", True)
    a, w = jax.numpy.asarray(x), jax.numpy.asarray(weight)
    np.testing.assert_allclose(jax.jit(rms_norm)(a, w), expected, rtol=1e-10)
    check_grads(jax.jit(rms_norm), (a, w), order=1, modes=["rev"])
    by_rows = jax.vmap(rms_norm, in_axes=(0, None))(a, w)
    np.testing.assert_allclose(by_rows, expected, rtol=1e-10)
    proved.append("JAX with jit, grad and vmap")

if find_spec("tensorflow"):
    import tensorflow

    a, w = tensorflow.constant(x), tensorflow.constant(weight)

    @tensorflow.function
    def gradients(a, w):
        with tensorflow.GradientTape() as tape:
            tape.watch([a, w])
            total = tensorflow.reduce_sum(rms_norm(a, w) ** 3)
        return tape.gradient(total, [a, w])

    with tensorflow.GradientTape() as tape:
        tape.watch([a, w])
        by_hand = reference(a, w, lambda y: tensorflow.reduce_mean(y, -1, keepdims=True))
        total = tensorflow.reduce_sum(by_hand**3)
    for ours, theirs in zip(gradients(a, w), tape.gradient(total, [a, w]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
    proved.append("TensorFlow with tf.function and GradientTape")

print(f"Two functions in C are RMSNorm and its gradient in: {'; '.join(proved)}.")
