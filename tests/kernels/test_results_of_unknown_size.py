"""Results whose size the kernel says: `nonzero(x: f32[n]) -> i64[k<=n]`, and `.bounded`."""

from __future__ import annotations

import gc
import pickle
import shutil
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import (
    ArgumentError,
    KernelDefectError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.kernels.kernel import recorded, serving
from dlbridge.kernels.schema import Described, Schema
from dlbridge.testing import check_kernel

SOURCE = r"""
#include "dlbridge_kernel.h"

/* The numbers of x above 0; of 99 as the first, an extent beyond the bound, of 98 one below 0, of
   97 none at all. */
int keep(void *context, DLTensor *args, int count) {
    const float *x = args[0].data;
    int64_t n = args[0].shape[0], k = 0, *said = args[2].data;
    if (count != 3 || args[1].shape[0] != n || args[2].ndim != 0)
        return dlb_set_error(context, "%d tensors", count);
    for (int64_t i = 0; i < n; i++)
        if (x[i] > 0)
            ((float *)args[1].data)[k++] = x[i];
    if (n > 0 && x[0] == 97)
        return 0;
    *said = n == 0 || x[0] < 98 ? k : x[0] == 99 ? n + 1 : -3;
    return 0;
}

/* Rows of x that begin with a number above 0, where they were, and how many they are. */
void rows(const float *x, int64_t n, int64_t m, float *values, int32_t *places, float *total,
          int64_t *k) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++)
        if (m > 0 && x[i * m] > 0) {
            for (int64_t j = 0; j < m; j++)
                values[found * m + j] = x[i * m + j];
            places[found++] = (int32_t)i;
        }
    *total = (float)found;
    *k = found;
}

/* Numbers below and above 0, in one call. */
void part(const float *x, int64_t n, float *low, float *high, int64_t *i, int64_t *j) {
    *i = *j = 0;
    for (int64_t at = 0; at < n; at++)
        if (x[at] < 0)
            low[(*i)++] = x[at];
        else if (x[at] > 0)
            high[(*j)++] = x[at];
}

/* Each number as often as `times` says; counts its calls in `calls`. */
void repeat(float *calls, const float *x, int64_t times, int64_t n, float *out, int64_t *k) {
    calls[0] += 1;
    for (int64_t i = 0; i < n * times; i++)
        out[i] = x[i / times];
    *k = n * times;
}

/* Says one number more than it wrote. */
void less(const float *x, int64_t n, float *out, int64_t *k) {
    for (int64_t i = 0; i + 1 < n; i++)
        out[i] = x[i];
    *k = n;
}
"""
KEEP = "sized::keep(x: f32[n]) -> f32[k<=n]"
ROWS = "sized::rows(x: f32[n, m]) -> (values: f32[k<=n, m], places: i32[k], total: f32[])"
ROWS_IN_C = (
    "void(const float *x, int64_t n, int64_t m, float *values, int32_t *places, float *total, "
    "int64_t *k)"
)
PART = "sized::part(x: f32[n]) -> (low: f32[i<=n], high: f32[j<=n])"
REPEAT = "sized::repeat(calls!: f32[1], x: f32[n], *, times: int = 2) -> f32[k<=n*times]"
X = np.array([3, -1, 0, 5, -2, 7], "f4")
KEPT = np.array([3, 5, 7], "f4")
FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow", "dlbridge")
INCLUDE = Path(__file__).resolve().parents[2] / "include"


def keep_vjp(x: Any, grad: Any, out: Any) -> Any:
    """Of the caller's framework; cotangent and result have the size that the call had."""
    assert tuple(grad.shape) == tuple(out.shape)
    if "tensorflow" in type(x).__module__:
        tf = sys.modules["tensorflow"]
        return tf.tensor_scatter_nd_update(tf.zeros_like(x), tf.where(x > 0), grad)
    if hasattr(x, "masked_scatter"):
        return (x * 0).masked_scatter(x > 0, grad)
    return (x * 0).at[(x > 0).nonzero()[0]].set(grad)


@pytest.fixture(scope="module")
def keep(compiled: Any) -> dlbridge.Kernel:
    return dlbridge.compile_c(SOURCE, "keep", KEEP, vjp=keep_vjp)


@pytest.fixture(scope="module")
def rows(compiled: Any) -> dlbridge.Kernel:
    return dlbridge.compile_c(SOURCE, "rows", ROWS, abi=ROWS_IN_C)


@pytest.fixture(scope="module")
def part(compiled: Any) -> dlbridge.Kernel:
    abi = "void(const float *x, int64_t n, float *low, float *high, int64_t *i, int64_t *j)"
    return dlbridge.compile_c(SOURCE, "part", PART, abi=abi)


@pytest.fixture(scope="module")
def repeat(compiled: Any) -> dlbridge.Kernel:
    abi = "void(float *calls, const float *x, int64_t times, int64_t n, float *out, int64_t *k)"
    return dlbridge.compile_c(SOURCE, "repeat", REPEAT, abi=abi)


def tensor(framework: str, values: Any = X) -> Any:
    pytest.importorskip(framework)
    return dlbridge.convert(np.asarray(values, "f4"), framework, copy=True)


def numbers(found: Any) -> Any:
    several = found if isinstance(found, tuple | list) else (found,)
    return [dlbridge.to_numpy(each, grad="detach").tolist() for each in several]


# ---- schemas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        (KEEP, "sized::keep(x: f32[n]) -> (out: f32[n], k: i64[])"),
        (
            ROWS,
            (
                "sized::rows(x: f32[n, m]) -> (values: f32[n, m], places: i32[n], total: f32[], "
                "k: i64[])"
            ),
        ),
        (PART, "sized::part(x: f32[n]) -> (low: f32[n], high: f32[n], i: i64[], j: i64[])"),
        (
            "a::f(x: u8[n], *, limit: int) -> u8[size<=limit*8+n]",
            "a::f(x: u8[n], *, limit: int) -> (out: u8[limit*8+n], size: i64[])",
        ),
        ("a::f(x: i64[n]) -> i64[k<=3, n]", "a::f(x: i64[n]) -> (out: i64[3, n], k: i64[])"),
    ],
)
def test_a_schema_has_another_one_with_the_bounds(text: str, bounded: str) -> None:
    schema = Schema.parse(text)
    assert str(schema) == text
    assert Schema.parse(str(schema)) == schema
    assert str(schema.bounded()) == bounded


def test_the_bound_may_stand_at_any_result_and_is_written_at_the_first() -> None:
    schema = Schema.parse("a::f(x: f32[n]) -> (f32[k], i64[k<=n])")
    assert str(schema) == "a::f(x: f32[n]) -> (f32[k<=n], i64[k])"
    assert schema.results_of(schema.bind([Described((4,), X_DTYPE)]))[0] == ((None,), X_DTYPE)


X_DTYPE = dlbridge.DType("float32")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a::f(x: f32[k<=3]) -> f32[3]", "'k<=3' is of results"),
        ("a::f(x: f32[n]) -> f32[n, k<=n]", "'k<=n' must be the first dimension of 'out'"),
        ("a::f(x: f32[n]) -> f32[n<=n]", "'n' is what the kernel says, and has another meaning"),
        ("a::f(x: f32[n]) -> (f32[out_1<=n], f32[])", "has another meaning"),
        ("a::f(x: f32[n], *, k: int) -> f32[k<=n]", "has another meaning"),
        ("a::f(x: f32[n]) -> f32[k<=m]", "dimension 'm' of 'out' is not determined"),
        ("a::f(x: f32[n]) -> f32[k<=k]", "'k' is its own bound"),
        ("a::f(x: f32[n]) -> (f32[k<=n], f32[k<=2*n])", "'k' has two bounds: 'k<=n' and 'k<=2*n'"),
        ("a::f(x: f32[n]) -> (f32[k<=n], f32[2*k])", "it stands alone, not in 2*k"),
        ("a::f(x: f32[n]) -> f32[k<=n][2]", "'out' is a list"),
        ("a::f(x: f32[n]) -> f32[2<=n]", "expected ',' or ']', got '<='"),
    ],
)
def test_sizes_that_no_kernel_can_say_are_refused(text: str, why: str) -> None:
    with pytest.raises(ArgumentError, match="Schema: ") as refused:
        Schema.parse(text)
    assert why in str(refused.value)


# ---- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_result_is_as_large_as_the_kernel_says(
    framework: str, keep: dlbridge.Kernel, rows: dlbridge.Kernel, part: dlbridge.Kernel
) -> None:
    x = tensor(framework)
    assert numbers(keep(x)) == [KEPT.tolist()]
    assert numbers(getattr(keep, framework)(x)) == [KEPT.tolist()]
    assert numbers(part(x)) == [[-1, -2], [3, 5, 7]]
    two = tensor(framework, X.reshape(3, 2))
    assert numbers(rows(two)) == [[[3, -1]], [0], 1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("values", [[], [-1, -2], [1, 2, 3]], ids=["empty", "none", "all"])
def test_the_smallest_and_the_largest_size(
    framework: str, values: list[float], keep: dlbridge.Kernel
) -> None:
    found = keep(tensor(framework, values))
    assert tuple(found.shape) == (len([each for each in values if each > 0]),)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("first", "says"), [(99, "k=3, which"), (98, "k=-3, which"), (97, "k=-1, which")]
)
def test_a_size_beyond_the_bound_is_refused(
    framework: str, first: float, says: str, keep: dlbridge.Kernel
) -> None:
    x = tensor(framework, [first, 1])
    for kernel in (keep, keep.bounded):
        with pytest.raises(KernelError, match="sized::keep: the kernel says ") as refused:
            kernel(x)
        assert f"{says} must be from 0 to 2, the bound" in str(refused.value)


def test_the_result_is_a_view_of_memory_with_room_for_the_bound(keep: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    found = keep(torch.tensor(X))
    assert found.untyped_storage().nbytes() == X.nbytes
    assert found.is_contiguous()
    array = keep(X)
    assert array.flags.writeable
    assert array.base is not None
    reference = weakref.ref(array)
    again = array[:1]
    del array
    gc.collect()
    assert again[0] == 3
    assert reference() is None


def test_what_a_kernel_writes_is_written_and_the_bound_may_depend_on_scalars(
    repeat: dlbridge.Kernel,
) -> None:
    calls = np.zeros(1, "f4")
    assert repeat(calls, X[:2]).tolist() == [3, 3, -1, -1]
    assert repeat(calls, X[:1], times=3).tolist() == [3, 3, 3]
    assert calls[0] == 2
    torch = pytest.importorskip("torch")
    counted = torch.zeros(1)
    assert torch.ops.sized.repeat(counted, torch.tensor(X[:2])).tolist() == [3, 3, -1, -1]
    assert counted.item() == 1


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_new_values_of_what_it_writes_come_after_the_results(
    framework: str, repeat: dlbridge.Kernel
) -> None:
    found = repeat(tensor(framework, [4]), tensor(framework, [1, 2]))
    assert numbers(found) == [[1, 1, 2, 2], [5]]


def test_bounded_may_be_wrapped_again(compiled: Any) -> None:
    """The other kernel has a key of its own: programs of the first call the first."""
    abi = "void(const float *x, int64_t n, float *out, int64_t *k)"
    less = dlbridge.compile_c(SOURCE, "less", "sized::less_again(x: f32[n]) -> f32[k<=n]", abi=abi)
    again = dlbridge.wrap(less.bounded, vjp=lambda x, grad_out: x * 0)
    assert recorded(again) != recorded(less.bounded)
    assert serving(recorded(less.bounded)) is less.bounded
    assert serving(recorded(again)) is again


def test_there_is_no_out_but_that_of_bounded(keep: dlbridge.Kernel) -> None:
    room, said = np.zeros(6, "f4"), np.zeros((), "i8")
    with pytest.raises(UnsupportedTypeError, match="argument 'out': not expected; the kernel says"):
        keep(X, out=room)
    keep.bounded(X, out=(room, said))
    assert room[: int(said)].tolist() == KEPT.tolist()
    assert "out" not in keep.__signature__.parameters  # type: ignore[attr-defined]
    assert "out" in keep.bounded.__signature__.parameters  # type: ignore[attr-defined]


def test_arguments_are_checked_in_the_name_of_the_kernel(keep: dlbridge.Kernel) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"^sized::keep: argument 'x': expected f32"):
        keep(X.astype("f8"))
    with pytest.raises(ArgumentError, match=r"^sized::keep: argument 'x'"):
        keep(X.reshape(2, 3))


def test_bounded_is_a_kernel_that_can_be_pickled(keep: dlbridge.Kernel) -> None:
    assert pickle.loads(pickle.dumps(keep.bounded)) is keep.bounded
    assert keep.bounded.bounded is keep.bounded
    assert pickle.loads(pickle.dumps(keep)) is keep


def test_debug_mode_looks_at_the_rows_that_the_kernel_says(
    keep: dlbridge.Kernel, rows: dlbridge.Kernel, compiled: Any
) -> None:
    abi = "void(const float *x, int64_t n, float *out, int64_t *k)"
    less = dlbridge.compile_c(SOURCE, "less", "sized::less(x: f32[n]) -> f32[k<=n]", abi=abi)
    with dlbridge.debug_kernels():
        assert keep(X).tolist() == KEPT.tolist()
        assert rows(X.reshape(3, 2))[0].tolist() == [[3, -1]]
        with pytest.raises(KernelDefectError, match="unwritten, the first at") as found:
            less(X)
        assert found.value.reason == "unwritten"
        with pytest.raises(KernelError, match="the kernel says k=7, which must be from 0 to 6"):
            keep(np.array([99, 1, 1, 1, 1, 1], "f4"))


# ---- functions of Python -------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["numpy", "torch", "tensorflow"])
def test_a_function_of_python_returns_results_as_large_as_they_are(framework: str) -> None:
    @dlbridge.wrap(schema="sized::split(x: f32[n]) -> (f32[k<=n], i64[k])", abi="python:numpy")
    def split(x: Any) -> Any:
        return x[x > 0], np.flatnonzero(x > 0)

    assert numbers(split(tensor(framework))) == [[3, 5, 7], [0, 3, 5]]


def test_a_function_with_out_writes_into_the_bound_and_returns_the_size() -> None:
    @dlbridge.wrap(schema="sized::fill(x: f32[n]) -> f32[k<=n]", abi="python:numpy")
    def fill(x: Any, *, out: Any) -> Any:
        kept = x[x > 0]
        out[: len(kept)] = kept
        return len(kept) if x[0] != 1 else kept

    assert fill(X).tolist() == KEPT.tolist()
    with pytest.raises(UnsupportedTypeError, match="writes into `out`, so it must return the int"):
        fill(np.ones(2, "f4"))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_what_a_function_returns_is_compared_with_the_schema(framework: str) -> None:
    pytest.importorskip(framework)
    modes = iter([0, 1, 2, 3])

    def function(x: Any) -> Any:
        mode = next(modes)
        if mode == 0:
            return x[:3], x[:3]
        if mode == 1:
            return x[:3], x[:2]
        return (x[:1], x[:1, None]) if mode == 2 else x[:1]

    schema = "sized::returned(x: f32[n]) -> (f32[k<=2], f32[k])"
    kernel = dlbridge.wrap(function, schema, abi=f"python:{framework}")
    with pytest.raises(KernelError, match="k=3, which must be from 0 to 2"):
        kernel(X)
    with pytest.raises(KernelError, match=r"k=3, which|2 rows of 'out_1', but k is 3"):
        kernel(X)
    with pytest.raises(ArgumentError, match="expected f32"):
        kernel(X)
    with pytest.raises(UnsupportedTypeError, match="2 results"):
        kernel(X)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_function_of_the_framework_itself_is_differentiated_by_it(framework: str) -> None:
    module = pytest.importorskip(framework)

    def function(x: Any) -> Any:
        return 2 * x[x > 0]

    name = f"sized::of_{framework}(x: f32[n]) -> f32[k<=n]"
    kernel = dlbridge.wrap(function, name, abi=f"python:{framework}")
    if framework == "torch":
        x = module.tensor(X, requires_grad=True)
        kernel(x).sum().backward()
        found = x.grad
    else:
        found = module.grad(lambda x: kernel(x).sum())(module.numpy.asarray(X))
        with pytest.raises(KernelError, match=r"of_jax: the kernel says k, .* call \.bounded"):
            module.jit(kernel)(module.numpy.asarray(X))
    assert numbers(found) == [[2, 0, 0, 2, 0, 2]]


def test_eight_threads_call_it_for_the_first_time(compiled: Any) -> None:
    kernel = dlbridge.compile_c(SOURCE, "keep", KEEP.replace("keep", "first"))
    start = threading.Barrier(8)
    given = [tensor(("numpy", "torch")[place % 2], X * (place + 1)) for place in range(8)]

    def call(place: int) -> Any:
        start.wait()
        return numbers(kernel(given[place]))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, range(8)))
    assert found == [[(KEPT * (place + 1)).tolist()] for place in range(8)]


# ---- derivatives ---------------------------------------------------------------------------------


def test_torch_differentiates_by_vjp(keep: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    for call in (keep, keep.torch, torch.ops.sized.keep):
        x = torch.tensor(X, requires_grad=True)
        (call(x) * torch.tensor([2.0, 3.0, 4.0])).sum().backward()
        assert x.grad.tolist() == [2, 0, 0, 3, 0, 4]
    assert torch.func.grad(lambda x: keep(x).sum())(torch.tensor(X)).tolist() == [1, 0, 0, 1, 0, 1]
    _, moved = torch.func.jvp(keep, (torch.tensor(X),), (torch.arange(6.0),))
    assert moved.tolist() == [0, 3, 5]


def test_a_size_of_zero_has_a_gradient_of_zeros(keep: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([-1.0, -2.0], requires_grad=True)
    keep(x).sum().backward()
    assert x.grad.tolist() == [0, 0]


def test_tensorflow_differentiates_by_vjp_eagerly_and_in_graphs(
    keep: dlbridge.Kernel, tf: Any
) -> None:
    def differentiate(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(keep(x) * tf.constant([2.0, 3.0, 4.0]))
        return tape.gradient(loss, x)

    for function in (differentiate, tf.function(differentiate)):
        assert function(tf.constant(X)).numpy().tolist() == [2, 0, 0, 3, 0, 4]


def test_jax_differentiates_eager_calls(keep: dlbridge.Kernel) -> None:
    jax = pytest.importorskip("jax")
    weights = jax.numpy.asarray([2.0, 3, 4])
    found = jax.grad(lambda x: (keep(x) * weights).sum())(jax.numpy.asarray(X))
    assert found.tolist() == [2, 0, 0, 3, 0, 4]


def test_the_rule_may_ask_for_the_cotangents_of_several_results(compiled: Any) -> None:
    torch = pytest.importorskip("torch")

    def vjp(x: Any, grad_values: Any, values: Any, grad_total: Any) -> Any:
        assert grad_values.shape == values.shape
        found = torch.zeros_like(x)
        found[x[:, 0] > 0] = grad_values + grad_total
        return found

    kernel = dlbridge.compile_c(
        SOURCE, "rows", ROWS.replace("rows", "rows_2"), abi=ROWS_IN_C, vjp=vjp
    )
    x = torch.tensor(X.reshape(3, 2), requires_grad=True)
    values, _, total = kernel(x)
    (values.sum() * 3 + total).backward()
    assert x.grad.tolist() == [[4, 4], [0, 0], [0, 0]]


def test_a_jvp_and_a_batch_that_broadcasts_are_refused(compiled: Any) -> None:
    def jvp(x: Any, tangent_x: Any) -> Any:
        return tangent_x

    with pytest.raises(ArgumentError, match="jvp= cannot be given where the kernel says"):
        dlbridge.compile_c(SOURCE, "keep", KEEP.replace("keep", "refused"), jvp=jvp)
    with pytest.raises(ArgumentError, match="batch='broadcast' cannot be where"):
        dlbridge.compile_c(SOURCE, "keep", KEEP.replace("keep", "no"), batch="broadcast")


# ---- compilers and transforms --------------------------------------------------------------------


@pytest.fixture
def unbacked() -> Any:
    pytest.importorskip("torch")
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    with dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.usefixtures("unbacked")
def test_torch_compiles_one_program_for_all_sizes(keep: dlbridge.Kernel) -> None:
    torch = sys.modules["torch"]
    function = torch.compile(lambda x: keep(x) * 2, fullgraph=True, backend="aot_eager")
    for values in (X, -X, np.zeros(6, "f4"), np.ones(6, "f4")):
        assert function(torch.tensor(values)).tolist() == (values[values > 0] * 2).tolist()
    x = torch.tensor(X, requires_grad=True)
    function(x).sum().backward()
    assert x.grad.tolist() == [2, 0, 0, 2, 0, 2]


def test_torch_compile_breaks_the_graph_where_it_may_not_have_such_sizes(
    keep: dlbridge.Kernel,
) -> None:
    torch = pytest.importorskip("torch")
    function = torch.compile(lambda x: keep(x * 1) * 2, backend="aot_eager")
    assert function(torch.tensor(X)).tolist() == [6, 10, 14]


def test_torch_exports_unbacked_sizes_with_their_bounds(rows: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            values, places, total = rows(x)
            return values.sum(0), places + 1, total

    x = torch.tensor(X.reshape(3, 2))
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Module(), (x,), dynamic_shapes=[{0: batch}]).module()
    assert numbers(program(x)) == [[3, -1], [1], 1]
    assert numbers(program(torch.ones(5, 2))) == [[5, 5], [1, 2, 3, 4, 5], 5]


def test_opcheck_of_the_operator(keep: dlbridge.Kernel, part: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    keep.torch, part.torch
    torch.library.opcheck(torch.ops.sized.keep, (torch.tensor(X, requires_grad=True),))
    torch.library.opcheck(torch.ops.sized.part, (torch.tensor(X),))
    assert str(torch.ops.sized.part.default._schema).endswith("(Tensor x) -> (Tensor, Tensor)")


def test_vmap_of_torch_is_refused_and_takes_bounded(keep: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    two = torch.tensor(np.stack([X, -X]))
    with pytest.raises(KernelError, match=r"sized::keep: within torch.vmap .* call \.bounded"):
        torch.vmap(keep)(two)
    found, said = torch.vmap(keep.bounded)(two)
    assert said.tolist() == [3, 2]
    assert found[1, :2].tolist() == [1, 2]


@pytest.mark.parametrize("is_wide", [False, True], ids=["32 bits", "64 bits"])
def test_jit_and_vmap_of_jax_are_refused_and_take_bounded(
    is_wide: bool, keep: dlbridge.Kernel
) -> None:
    jax = pytest.importorskip("jax")
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with switch(is_wide):
        x = jax.numpy.asarray(X)
        for transformed, given in ((jax.jit(keep), x), (jax.vmap(keep.jax), x[None])):
            with pytest.raises(KernelError, match=r"keep: the kernel says k, .* call \.bounded"):
                transformed(given)

        @jax.jit
        def mean(x: Any) -> Any:
            found, said = keep.bounded(x)
            held = jax.numpy.arange(len(found)) < said
            return jax.numpy.where(held, found, 0).sum() / said

        assert mean(x) == 5
        found, said = jax.vmap(keep.bounded)(jax.numpy.stack([x, -x]))
        assert said.tolist() == [3, 2]
        assert said.dtype == ("int64" if is_wide else "int32")
        assert found[0, :3].tolist() == KEPT.tolist()
        with pytest.raises(Exception, match="the kernel says k=3, which must"):
            keep.bounded(jax.numpy.asarray([99.0, 1], "float32"))


def test_jax_has_no_int32_for_a_larger_bound() -> None:
    jax = pytest.importorskip("jax")
    kernel = dlbridge.wrap(
        lambda x: x[:1], "sized::huge(x: i8[n]) -> i8[k<=n*n]", abi="python:numpy"
    )
    with pytest.raises(UnsupportedTypeError, match="result 'k' could be 2500000000, and JAX has"):
        jax.eval_shape(kernel.bounded, jax.ShapeDtypeStruct((50000,), "int8"))


def test_shapes_in_a_tf_function_are_not_known_before(keep: dlbridge.Kernel, tf: Any) -> None:
    function = tf.function(lambda x: keep(x) * 2)
    made = function.get_concrete_function(tf.TensorSpec([None], "float32"))
    assert made.output_shapes.as_list() == [None]
    for values in (X, -X, X[:0]):
        assert function(tf.constant(values)).numpy().tolist() == (values[values > 0] * 2).tolist()


def test_the_nodes_of_tensorflow_are_called_by_a_key_of_their_own(
    keep: dlbridge.Kernel, tf: Any
) -> None:
    graph = tf.function(keep.tensorflow).get_concrete_function(tf.TensorSpec([3], "float32"))
    kernels = {str(node.attr["kernel"].s) for node in graph.graph.as_graph_def().node}
    assert any("sized::keep" in name and "__bounded" in name for name in kernels)


# ---- what ships kernels --------------------------------------------------------------------------


def test_models_of_onnxruntime_take_bounded(keep: dlbridge.Kernel) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    with pytest.raises(ArgumentError, match=r"sized::keep: the kernel says k, .* pass kernel"):
        dlbridge.register_onnxruntime(options, keep)
    dlbridge.register_onnxruntime(options, keep.bounded)


def test_graphs_take_bounded(keep: dlbridge.Kernel) -> None:
    from dlbridge import graph

    with pytest.raises(ArgumentError, match=r"says k when it has run, .* pass kernel.bounded"):
        graph.call(keep, [graph.constant(X)])


def test_a_library_that_describes_itself(tmp_path: Path, compiled: Any) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "sized.c"
    export = f'DLB_EXPORT(keep, "{KEEP.replace("keep", "kept")}");\n'
    abi = '.abi = "void(const float *x, int64_t n, float *out, int64_t *k)"'
    exports = export + f'DLB_EXPORT(less, "sized::fewer(x: f32[n]) -> f32[k<=n]", {abi});\n'
    source.write_text(SOURCE + exports)
    made = tmp_path / "libsized.so"
    flags = ["-shared", "-fPIC", f"-I{INCLUDE}", "-o", str(made)]
    subprocess.run([compiler, *flags, str(source)], check=True)
    library = dlbridge.load_library(made)
    assert library.kept(X).tolist() == KEPT.tolist()
    assert len(library.fewer(X)) == 6


def test_stubs_have_no_out(keep: dlbridge.Kernel) -> None:
    from dlbridge.frameworks.stubs import write_stub
    from dlbridge.kernels.exports import Export

    export = Export("keep", 0, keep.schema, "dltensors", "", "", {})
    text = write_stub([export], ["numpy", "torch"])
    assert "def __call__(self, x: torch.Tensor) -> torch.Tensor: ..." in text


@pytest.mark.full
def test_check_kernel(keep: dlbridge.Kernel, rows: dlbridge.Kernel) -> None:
    def kept_rows(x: Any) -> Any:
        found = x[:, :1].sum(1) > 0
        return x[found], np.flatnonzero(found), np.float64(found.sum())

    check_kernel(keep, lambda x: x[x > 0], frameworks=["numpy", "torch", "jax", "tensorflow"])
    check_kernel(rows, kept_rows, frameworks=["numpy", "torch", "jax"])


def test_check_kernel_finds_a_wrong_size(compiled: Any) -> None:
    abi = "void(const float *x, int64_t n, float *out, int64_t *k)"
    schema = "sized::wrong(x: f32[n]) -> f32[k<=n]"
    wrong = dlbridge.compile_c(SOURCE, "less", schema, abi=abi)
    with pytest.raises(AssertionError, match="has shape"):
        check_kernel(wrong, lambda x: x[:-1], frameworks=["numpy"])


def test_tensors_without_memory_have_no_size(keep: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(KernelError, match="sized::keep: the kernel says k when it has run"):
        keep(torch.empty(3, device="meta"))
