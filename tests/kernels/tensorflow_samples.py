"""Kernels in C for the tests of TensorFlow, which take any number of dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dlbridge

SOURCE = r"""
#include "dlbridge_kernel.h"

static int64_t count(const DLTensor *tensor) {
    int64_t elements = 1;
    for (int i = 0; i < tensor->ndim; i++)
        elements *= tensor->shape[i];
    return elements;
}

int axpy(void *context, DLTensor *args, int n) {
    const float *x = args[0].data, *y = args[1].data;
    float *out = args[2].data;
    for (int64_t i = 0; i < count(&args[0]); i++)
        out[i] = (float)dlb_get_float(context, 0) * x[i] + y[i];
    return 0;
}

int axpy_vjp(void *context, DLTensor *args, int n) {
    const float *grad = args[0].data;
    float *grad_x = args[1].data, *grad_y = args[2].data;
    for (int64_t i = 0; i < count(&args[0]); i++) {
        grad_x[i] = (float)dlb_get_float(context, 0) * grad[i];
        grad_y[i] = grad[i];
    }
    return 0;
}

int twice(void *context, DLTensor *args, int n) {
    float *x = args[0].data;
    for (int64_t i = 0; i < count(&args[0]); i++)
        x[i] *= 2;
    return 0;
}

/* Also says where the argument is. */
int halves(void *context, DLTensor *args, int n) {
    *(int64_t *)args[1].data = (int64_t)(intptr_t)args[0].data;
    return twice(context, args, n);
}

int fill(void *context, DLTensor *args, int n) {
    const float *x = args[0].data;
    float *out = args[n - 1].data;
    for (int64_t i = 0; i < count(&args[0]); i++)
        out[i] = x[i] + (dlb_is_missing(&args[1]) ? 0 : *(float *)args[1].data);
    return 0;
}

int where(void *context, DLTensor *args, int n) {
    *(int64_t *)args[1].data = (int64_t)(intptr_t)args[0].data;
    return 0;
}

int kinds(void *context, DLTensor *args, int n) {
    const dlb_scalar *scalars = ((dlb_context *)context)->scalars;
    double *out = args[1].data;
    out[0] = dlb_get_float(context, 0);
    out[1] = (double)dlb_get_int(context, 1);
    out[2] = (double)dlb_get_int(context, 2);
    out[3] = scalars[3].kind == DLB_STRING ? scalars[3].value.s[0] : -1;
    return 0;
}

int same(void *context, DLTensor *args, int n) { return 0; }

static int64_t calls;
int note(void *context, DLTensor *args, int n) {
    calls++;
    return 0;
}
int noted(void *context, DLTensor *args, int n) {
    *(int64_t *)args[0].data = calls;
    return 0;
}

int fail(void *context, DLTensor *args, int n) {
    return dlb_set_error(context, "cannot do %d tensors", n);
}
"""

SCHEMAS = {
    "axpy": "tf_test::axpy(x: f32[...], y: f32[...], *, alpha: float = 1.0) -> f32[...]",
    "axpy_vjp": "tf_test::axpy_vjp(grad: f32[...], *, alpha: float) "
    "-> (grad_x: f32[...], grad_y: f32[...])",
    "twice": "tf_test::twice(x!: f32[...])",
    "halves": "tf_test::halves(x!: f32[...]) -> i64[]",
    "fill": "tf_test::fill(x: f32[n], y: f32[]? = None) -> f32[n]",
    "where": "tf_test::where(x: any[...]) -> i64[]",
    "kinds": "tf_test::kinds(x: f32[n], a: float, b: int, c: bool, d: str? = None) -> f64[4]",
    "same": "tf_test::same(x: T[m, k], y: T[k, n]) -> T[m, 2*n]".replace("T", "number"),
    "note": "tf_test::note(x: f32[n])",
    "noted": "tf_test::noted() -> i64[]",
    "fail": "tf_test::fail(x: f32[n]) -> f32[n]",
}


@pytest.fixture(scope="session")
def tf(framework: Callable[[str], Any]) -> Any:
    """Return TensorFlow."""
    return framework("tensorflow")


@pytest.fixture(scope="session")
def samples(compiled: object) -> Callable[..., dlbridge.Kernel]:
    """Return `samples(name, schema=…, **options)`: a function of SOURCE as a Kernel.

    `compiled` skips the test where there is no compiler.
    """

    def build(name: str, schema: str | None = None, **options: Any) -> dlbridge.Kernel:
        return dlbridge.compile_c(SOURCE, name, schema or SCHEMAS[name], **options)

    return build
