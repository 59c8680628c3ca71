"""Two kernels in C for tests of calls: one returns twice its input, one writes its argument."""

from __future__ import annotations

from typing import Any

import pytest

import dlbridge

SOURCE = """
#include "dlbridge_kernel.h"

static int64_t count_of(const DLTensor *x) {
    int64_t count = 1;
    for (int i = 0; i < x->ndim; i++)
        count *= x->shape[i];
    return count;
}

int twice(void *ctx, DLTensor *a, int n) {
    const float *x = a[0].data;
    float *out = a[1].data;
    int64_t count = count_of(&a[0]);
    if (count > 0 && x[0] == -1.0f)
        return dlb_set_error(ctx, "the first element must not be %d", -1);
    for (int64_t i = 0; i < count; i++)
        out[i] = 2 * x[i];
    return n == 2 ? 0 : 7;
}

int increment(void *ctx, DLTensor *a, int n) {
    float *x = a[0].data;
    int64_t count = count_of(&a[0]);
    (void)ctx, (void)n;
    for (int64_t i = 0; i < count; i++)
        x[i] += 1;
    return 0;
}
"""


@pytest.fixture(scope="session")
def twice() -> Any:
    """Return a kernel that doubles each element and refuses -1 as the first one."""
    return dlbridge.compile_c(SOURCE, "twice", "hazards::twice(x: f32[...]) -> f32[...]")


@pytest.fixture(scope="session")
def increment() -> Any:
    """Return a kernel that adds 1 to each element of its argument in place."""
    return dlbridge.compile_c(SOURCE, "increment", "hazards::increment(x!: f32[...])")
