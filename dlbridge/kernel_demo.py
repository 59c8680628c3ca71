"""The demonstration of kernels: one function of C, called with the tensors of every framework."""

from __future__ import annotations

from statistics import median
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.kernels.compile import compile_c
from dlbridge.kernels.kernel import Kernel
from dlbridge.terminal import Column, print_table

SOURCE = """
#include "dlbridge_kernel.h"

/* Smoothstep: 3 x^2 - 2 x^3 of each element. */
int smoothstep(void *context, DLTensor *tensors, int count) {
    const float *x = tensors[0].data;
    float *out = tensors[1].data;
    int64_t size = 1;
    (void)context, (void)count;
    for (int i = 0; i < tensors[0].ndim; i++)
        size *= tensors[0].shape[i];
    for (int64_t i = 0; i < size; i++)
        out[i] = x[i] * x[i] * (3 - 2 * x[i]);
    return 0;
}
"""
SCHEMA = "demo::smoothstep(x: f32[...]) -> f32[...]"
COLUMNS = (
    Column("framework"),
    Column("gives back", wrap=True),
    Column("values"),
    Column("of 16: ns", right=True),
)


class Line(NamedTuple):
    """What one framework got from the kernel; or why it was refused."""

    framework: str
    kind: str
    right: bool
    ns: float = 0.0
    refusal: str = ""


def run(start: np.ndarray[Any, Any], ring: list[str]) -> int:
    """Call the kernel with `start` in every framework of `ring`; return 0 if all values are right.

    Without a C compiler it says so and returns 0.
    """
    try:
        kernel = compile_c(SOURCE, "smoothstep", SCHEMA)
    except DLBridgeError as error:
        print(f"\n(no kernel is compiled: {str(error).splitlines()[0]})")
        return 0
    print(f"\nOne kernel of C is called with the tensors of each: {SCHEMA}\n")
    lines = [call(kernel, start, name) for name in ring]
    print_table(COLUMNS, [describe(line) for line in lines])
    done = [line for line in lines if not line.refusal]
    wrong = [line.framework for line in done if not line.right]
    what = f"WRONG in {', '.join(wrong)}" if wrong else "right everywhere"
    print(f"\nProved: {len(done)} of {len(lines)} frameworks ran it, the values are {what}.")
    return int(bool(wrong))


def call(kernel: Kernel, start: np.ndarray[Any, Any], name: str) -> Line:
    """Return what the kernel gives for `start` as a tensor of one framework."""
    try:
        result = kernel(native.convert(start, name))
        back = native.convert(result, "numpy", readonly="share")
        few = native.convert(start.ravel()[:16].copy(), name)
        timer = Timer(lambda: kernel(few))
        timer.timeit(20)
    except DLBridgeError as error:
        return Line(name, "", right=False, refusal=f"refused: {error.reason}")
    right = bool(np.allclose(back, start * start * (3 - 2 * start), atol=1e-6))
    ns = median(timer.timeit(50) / 50 for _ in range(15)) * 1e9
    cls = type(result)
    return Line(name, f"{cls.__module__.partition('.')[0]} {cls.__name__}", right, ns)


def describe(line: Line) -> list[str]:
    """Return the cells of one row."""
    if line.refusal:
        return [line.framework, line.refusal, "", ""]
    return [line.framework, line.kind, "right" if line.right else "WRONG", f"{line.ns:,.0f}"]
