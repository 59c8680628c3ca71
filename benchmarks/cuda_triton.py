"""A kernel of Triton; Triton reads its source from this file."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def saxpy(a, x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
    """Compute a * x + y."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, a * tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)
