"""Memory that producers lend: what they do to it afterwards must not reach the view.

A producer may free, move or reuse its memory by calls of its own, while the object lives. Each row
of the table in docs/concepts/ownership.md has a test here: the view holds the memory, or the
producer refuses the call, or the limit is as documented. What would end the process runs in one of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# A kernel that lets a producer change its memory, and reads it then.
CALLBACK = """
    import ctypes

    read, others = [], []
    SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def reading(change, nbytes):
        def call(_context, tensors):
            data = ctypes.c_void_p.from_address(tensors).value
            change()
            read.append(list(ctypes.string_at(data, nbytes)))
            return 0

        return SIGNATURE(call)
"""

# ---- JAX -----------------------------------------------------------------------------------------

JAX = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    import dlbridge

    def fresh(dtype):
        return (jnp.arange(1000) % 7).astype(dtype)

    def recorded(x):
        with dlbridge.receipts():
            return dlbridge.from_dlpack(x)

    def delete(x):
        x.delete()

    def delete_shards(x):
        x.addressable_shards[0].data.delete()
        x.delete()

    def donate(x):
        jax.jit(lambda v: v * 7, donate_argnums=0)(x)

    LENDS = {
        "to_numpy": dlbridge.to_numpy,
        "from_dlpack": dlbridge.from_dlpack,
        "as_tensor": dlbridge.as_tensor,
        "recorded": recorded,
        "view": lambda x: dlbridge.from_dlpack(x)[:],
        "convert_tree": lambda x: dlbridge.convert_tree([x], "numpy")[0],
        "capsule": lambda x: dlbridge.from_dlpack(x).__dlpack__(max_version=(1, 1)),
        "exported again": lambda x: dlbridge.to_jax(dlbridge.to_numpy(dlbridge.from_dlpack(x))),
    }
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "float8_e4m3fn"])
def test_a_view_survives_the_deletion_of_a_jax_array(
    dtype: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """jaxlib's own capsules end the process here: its buffer protocol keeps the buffer."""
    framework("jax")
    run_python(
        JAX
        + """
    def delete_everything(x):
        for each in jax.live_arrays():
            each.delete()

    dtype = sys.argv[1]
    for name, lend in LENDS.items():
        for change in delete, delete_shards, donate, delete_everything:
            x = fresh(dtype)
            expected = np.array(x)
            lent = lend(x)
            change(x)
            del x
            others = [jnp.full(1000, 9.0).block_until_ready() for _ in range(20)]
            if name == "capsule":
                lent = dlbridge.from_dlpack(lent)
            if not isinstance(lent, jax.Array) or not lent.is_deleted():
                assert np.array_equal(dlbridge.to_numpy(lent), expected), (name, change)
            del lent
        """,
        dtype,
    ).check()


@pytest.mark.subprocess
def test_a_result_of_a_jitted_kernel_may_be_deleted(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    framework("jax")
    run_python(
        JAX
        + """
    def double(x, out):
        np.multiply(x, 2, out=out)

    twice = dlbridge.wrap(double, "lent::twice(x: f32[n]) -> f32[n]", abi="python:numpy")
    for call in twice, jax.jit(twice):
        for lend in LENDS.values():
            y = call(fresh("float32"))
            lent = lend(y)
            y.delete()
            del lent
    """
    ).check()


@pytest.mark.subprocess
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_arrays_may_be_deleted_at_exit_under_views(
    dtype: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    framework("jax")
    run_python(
        JAX
        + """
    import atexit
    arrays = [fresh(sys.argv[1]) for _ in LENDS]
    lent = [lend(x) for x, lend in zip(arrays, LENDS.values())]
    atexit.register(lambda: [x.delete() for x in arrays])
    """,
        dtype,
    ).check()


@pytest.mark.subprocess
def test_a_jax_array_may_be_deleted_by_a_kernel_that_reads_it(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """As another thread may delete it while a kernel runs without the GIL."""
    framework("jax")
    run_python(
        JAX
        + CALLBACK
        + """
    for dtype, name in (("int8", "i8"), ("bfloat16", "bf16")):
        x = fresh(dtype)
        expected = np.array(x).view(np.uint8).tolist()

        def change():
            x.delete()
            others.extend(jnp.full(1000, 9, dtype).block_until_ready() for _ in range(20))

        kernel = dlbridge.wrap(
            reading(change, len(expected)), f"lent::read_{name}(x: {name}[n]) -> ()"
        )
        kernel(x)
        assert x.is_deleted()
        assert read.pop() == expected, dtype
    """
    ).check()
