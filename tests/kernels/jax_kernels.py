"""Kernels in C that the tests of JAX call, also from processes of their own."""

from __future__ import annotations

from dlbridge.kernels.library import compile_c
from dlbridge.kernels.wrap import wrap

SOURCE = r"""
#include <math.h>
#include <string.h>
#include <time.h>
#include "dlpack.h"
#include "dlbridge_kernel.h"

static int64_t size_of(const DLTensor *t) {
    int64_t size = 1;
    for (int i = 0; i < t->ndim; i++)
        size *= t->shape[i];
    return size;
}

/* out = alpha * x + y, for float and double */
int axpy(void *context, DLTensor *t, int count) {
    double alpha = dlb_get_float(context, 0);
    for (int64_t i = 0; i < size_of(t + 2); i++)
        if (t->dtype.bits == 32)
            ((float *)t[2].data)[i] = alpha * ((float *)t[0].data)[i] + ((float *)t[1].data)[i];
        else
            ((double *)t[2].data)[i] = alpha * ((double *)t[0].data)[i] + ((double *)t[1].data)[i];
    return 0;
}

int mul(void *context, DLTensor *t, int count) {
    for (int64_t i = 0; i < size_of(t + 2); i++)
        ((float *)t[2].data)[i] = ((float *)t[0].data)[i] * ((float *)t[1].data)[i];
    return 0;
}

int copy(void *context, DLTensor *t, int count) {
    memcpy(t[1].data, t[0].data, (size_of(t) * t->dtype.bits + 7) / 8);
    return 0;
}

int scale(void *context, DLTensor *t, int count) {
    for (int64_t i = 0; i < size_of(t); i++)
        ((float *)t->data)[i] *= dlb_get_float(context, 0);
    return 0;
}

/* x is read, y is written in place, out is their sum before */
int swap(void *context, DLTensor *t, int count) {
    for (int64_t i = 0; i < size_of(t); i++) {
        float x = ((float *)t[0].data)[i], y = ((float *)t[1].data)[i];
        ((float *)t[2].data)[i] = x + y;
        ((float *)t[1].data)[i] = x;
    }
    return 0;
}

/* Smallest and sum along the last dimension. */
int extent(void *context, DLTensor *t, int count) {
    int64_t n = t->shape[t->ndim - 1], rows = n ? size_of(t) / n : 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = (float *)t[0].data + r * n;
        float low = INFINITY, sum = 0;
        for (int64_t i = 0; i < n; i++) {
            low = fminf(low, x[i]);
            sum += x[i];
        }
        ((float *)t[1].data)[r] = low;
        ((float *)t[2].data)[r] = sum;
    }
    return 0;
}

/* Addresses of all tensors before the last. */
int where(void *context, DLTensor *t, int count) {
    for (int i = 0; i + 1 < count; i++)
        memcpy((char *)t[count - 1].data + 8 * i, &t[i].data, 8);
    return 0;
}

/* The arguments that arrived: kinds and values of the scalars, whether y is there. */
int show(void *context, DLTensor *t, int count) {
    const dlb_context *call = context;
    double *out = t[2].data;
    for (int i = 0; i < 5; i++) {
        const dlb_scalar *s = &call->scalars[i];
        out[2 * i] = s->kind;
        out[2 * i + 1] = s->kind == DLB_STRING ? (double)strlen(s->value.s)
                         : s->kind == DLB_INT  ? (double)s->value.i
                         : s->kind             ? s->value.f
                                               : 0;
    }
    out[10] = dlb_is_missing(t + 1);
    return 0;
}

/* The 64 bits of both scalars. */
int bits(void *context, DLTensor *t, int count) {
    const dlb_context *call = context;
    memcpy(t[1].data, &call->scalars[0].value, 8);
    memcpy((char *)t[1].data + 8, &call->scalars[1].value, 8);
    return 0;
}

int fail(void *context, DLTensor *t, int count) {
    return dlb_set_error(context, "no luck with %d tensors", count);
}

static int64_t ticks;
int tick(void *context, DLTensor *t, int count) {
    __atomic_fetch_add(&ticks, 1, __ATOMIC_RELAXED);
    return 0;
}
int64_t tick_count(void) {
    return ticks;
}

/* Say that the kernel runs, and wait for an answer, for a minute at most. */
int meet(void *context, DLTensor *t, int count) {
    int32_t *said = (int32_t *)dlb_get_int(context, 0);
    struct timespec time = {0, 1000000};
    __atomic_store_n(said, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 60000; i++) {
        if (__atomic_load_n(said + 1, __ATOMIC_SEQ_CST))
            return copy(context, t, count);
        nanosleep(&time, NULL);
    }
    return dlb_set_error(context, "nobody answered");
}
"""

AXPY = "jaxtests::axpy(x: A[n], y: A[n], *, alpha: float = 1.0) -> A[n]".replace("A", "f32|f64")


def axpy_vjp(grad, alpha):
    return alpha * grad, grad


def make(function: str, schema: str | None, **options):
    """Wrap one function of the source."""
    name = options.pop("name", None)
    kernel = compile_c(SOURCE, function, schema, flags=["-O1"], **options)
    return kernel if name is None else wrap(kernel, name=name)


def axpy(**options):
    """alpha * x + y, with a gradient."""
    return make("axpy", AXPY, **{"vjp": axpy_vjp, **options})


def mul(name: str = "mul", **options):
    """x * y for leading dimensions of any number; its gradient calls it again."""

    def vjp(x, y, grad):
        return kernel.jax(grad, y), kernel.jax(x, grad)

    schema = f"jaxtests::{name}(x: f32[..., n], y: f32[..., n]) -> f32[..., n]"
    kernel = make("mul", schema, **{"vjp": vjp, **options})
    return kernel


def swap():
    return make("swap", "jaxtests::swap(x: f32[n], y!: f32[n]) -> f32[n]")


def scale():
    return make("scale", "jaxtests::scale(x!: f32[...], *, factor: float)")


def where():
    return make("where", "jaxtests::where(x: f32[n], y: f32[n]) -> (out: f32[n], at: u32[6])")
