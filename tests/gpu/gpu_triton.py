"""Kernels of Triton; Triton reads their source from this file."""

import triton
import triton.language as tl


@triton.jit
def saxpy(x, y, a, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, a * tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)
