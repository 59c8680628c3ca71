"""A kernel with two derivatives, in C and as formulas: alpha * x * x * y."""

from __future__ import annotations

SOURCE = r"""
#include "dlbridge_kernel.h"

static int64_t count(const DLTensor *tensor) {
    int64_t n = 1;
    for (int i = 0; i < tensor->ndim; i++)
        n *= tensor->shape[i];
    return n;
}

/* out = alpha * x * x * y */
int square(void *context, DLTensor *args, int n) {
    const double *x = args[0].data, *y = args[1].data;
    double *out = args[2].data, alpha = dlb_get_float(context, 0);
    for (int64_t i = 0; i < count(args); i++)
        out[i] = alpha * x[i] * x[i] * y[i];
    return 0;
}

int square_vjp(void *context, DLTensor *args, int n) {
    const double *x = args[0].data, *y = args[1].data, *grad = args[2].data;
    double *grad_x = args[3].data, *grad_y = args[4].data, alpha = dlb_get_float(context, 0);
    for (int64_t i = 0; i < count(args); i++) {
        grad_x[i] = 2 * alpha * x[i] * y[i] * grad[i];
        grad_y[i] = alpha * x[i] * x[i] * grad[i];
    }
    return 0;
}

int square_jvp(void *context, DLTensor *args, int n) {
    const double *x = args[0].data, *y = args[1].data;
    const double *tangent_x = args[2].data, *tangent_y = args[3].data;
    double *out = args[4].data, alpha = dlb_get_float(context, 0);
    for (int64_t i = 0; i < count(args); i++)
        out[i] = alpha * x[i] * (2 * y[i] * tangent_x[i] + x[i] * tangent_y[i]);
    return 0;
}
"""
SCHEMA = "(x: f64[...], y: f64[...], *, alpha: float) -> (out: f64[...])"
VJP_SCHEMA = (
    "(x: f64[...], y: f64[...], grad: f64[...], *, alpha: float)"
    " -> (grad_x: f64[...], grad_y: f64[...])"
)
JVP_SCHEMA = (
    "(x: f64[...], y: f64[...], tangent_x: f64[...], tangent_y: f64[...], *, alpha: float)"
    " -> (out: f64[...])"
)


def formula(x, y, *, alpha):
    return alpha * x * x * y


def vjp(x, y, alpha, grad):
    return 2 * alpha * x * y * grad, alpha * x * x * grad


def jvp(x, y, alpha, tangent_x, tangent_y):
    return 2 * alpha * x * y * tangent_x + alpha * x * x * tangent_y


def second_vjp(x, y, grad, alpha, grad_grad_x, grad_grad_y):
    a, b = grad_grad_x, grad_grad_y
    return (
        2 * alpha * y * grad * a + 2 * alpha * x * grad * b,
        2 * alpha * x * grad * a,
        2 * alpha * x * y * a + alpha * x * x * b,
    )


def second_jvp(x, y, grad, alpha, tangent_x, tangent_y, tangent_grad):
    return (
        2 * alpha * (tangent_x * y * grad + x * tangent_y * grad + x * y * tangent_grad),
        2 * alpha * x * tangent_x * grad + alpha * x * x * tangent_grad,
    )
