"""Kernels for the tests of torch's operators, with bodies in C and through torch.library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import dlbridge
from dlbridge.kernels.kernel import Kernel

SOURCE = r"""
#include "dlbridge_kernel.h"

static int64_t count(const DLTensor *tensor) {
    int64_t n = 1;
    for (int i = 0; i < tensor->ndim; i++)
        n *= tensor->shape[i];
    return n;
}

int mul(void *context, DLTensor *args, int n) {
    const double *x = args[0].data, *y = args[1].data;
    double *out = args[2].data;
    for (int64_t i = 0; i < count(args); i++)
        out[i] = dlb_get_float(context, 0) * x[i] * y[i];
    return 0;
}

int fail_on_second(void *context, DLTensor *args, int n) {
    const double *x = args[0].data;
    return x[0] == 1 ? 7 : 0;
}

int add_to(void *context, DLTensor *args, int n) {
    float *x = args[0].data;
    for (int64_t i = 0; i < count(args); i++)
        x[i] += (float)dlb_get_int(context, 0);
    return 0;
}

/* out = m * x + y; "negative" turns m around, `ten` is ten times m. */
int affine(void *context, DLTensor *args, int n) {
    const dlb_scalar *scalars = ((dlb_context *)context)->scalars;
    float m = scalars[0].kind == DLB_NONE ? 1 : (float)scalars[0].value.i;
    if (scalars[1].value.s[0] == 'n')
        m = -m;
    if (dlb_get_int(context, 2))
        m *= 10;
    const float *x = args[0].data, *y = dlb_is_missing(&args[1]) ? NULL : args[1].data;
    float *out = args[2].data;
    for (int64_t i = 0; i < count(args); i++)
        out[i] = m * x[i] + (y ? y[i] : 0);
    return 0;
}

int ones_at(void *context, DLTensor *args, int n) {
    float *out = args[1].data;
    for (int64_t i = 0; i < count(args + 1); i++)
        out[i] = 1;
    return 0;
}

int minmax(void *context, DLTensor *args, int n) {
    const float *x = args[0].data;
    float *low = args[1].data, *high = args[2].data;
    *low = *high = x[0];
    for (int64_t i = 1; i < count(args); i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
    return 0;
}

int fail(void *context, DLTensor *args, int n) {
    return dlb_set_error(context, "no luck with %d tensors", n);
}

int nothing(void *context, DLTensor *args, int n) {
    return 0;
}
"""
MUL = "mul(x: f64[...], y: f64[...], *, alpha: float = 1.0) -> f64[...]"
AFFINE = (
    "affine(x: f32[n], y: f32[n]? = None, *, m: int? = None, "
    'sign: str = "positive", ten: bool = False) -> f32[n]'
)


def compiled(function, schema, **options):
    return dlbridge.compile_c(SOURCE, function, schema, **options)


def make_mul(namespace, name="mul", **options):
    """`alpha * x * y`, whose derivatives are made of itself, so that there are any number."""

    def vjp(x, y, grad, alpha):
        return kernel(grad, y, alpha=alpha), kernel(grad, x, alpha=alpha)

    def jvp(x, y, tangent_x, tangent_y, alpha):
        return kernel(tangent_x, y, alpha=alpha) + kernel(x, tangent_y, alpha=alpha)

    schema = f"{namespace}::{MUL.replace('mul', name, 1)}"
    kernel = compiled("mul", schema, vjp=vjp, jvp=jvp, **options)
    return kernel


@pytest.fixture(params=["c", "python"])
def ops(request, framework, monkeypatch):
    """Kernels, and `ops.torch_ops` with their operators: bodies in C, then in Python."""
    framework("torch")
    import torch

    from dlbridge.frameworks.torch import internals

    if request.param == "python":
        monkeypatch.setattr(internals, "_SHIM", ["a symbol"])
    elif internals.shim_lacks() is not None:
        pytest.skip(f"libtorch lacks {internals.shim_lacks()}")
    if request.param not in _MADE:
        _MADE[request.param] = _make_ops(f"ops_{request.param}", torch)
    return _MADE[request.param]


_MADE: dict[str, SimpleNamespace] = {}


def _make_ops(namespace, torch):
    made = SimpleNamespace(
        namespace=namespace,
        mul=make_mul(namespace),
        add_to=compiled("add_to", f"{namespace}::add_to(x!: f32[n], *, by: int = 1)"),
        affine=compiled("affine", f"{namespace}::{AFFINE}"),
        minmax=compiled("minmax", f"{namespace}::minmax(x: f32[n]) -> (low: f32[], high: f32[])"),
        fail=compiled("fail", f"{namespace}::fail(x: f32[n]) -> f32[n]"),
        torch_ops=getattr(torch.ops, namespace),
    )
    for kernel in vars(made).values():
        if isinstance(kernel, Kernel):
            kernel.torch
    return made
