"""Arguments and results that are lists of tensors: `xs: f32[n][]`, `xs!: f32[?...][k]`."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge.errors import (
    ArgumentError,
    ExchangeError,
    KernelDefectError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.kernels.schema import Schema, encode_cost, flatten, gather, lengths_of, spread
from dlbridge.testing import check_kernel

SOURCE = r"""
#include "dlbridge_kernel.h"

/* Each of the xs times `by`: arguments and results in a row, lists found by their place. */
int scale(void *context, DLTensor *args, int count) {
    int64_t inputs, outputs;
    const float *by = dlb_get_tensors(context, args, 0, NULL)->data;
    DLTensor *xs = dlb_get_tensors(context, args, 1, &inputs);
    DLTensor *out = dlb_get_tensors(context, args, 2, &outputs);
    if (inputs != outputs || 1 + inputs + outputs != count)
        return dlb_set_error(context, "%d tensors", count);
    for (int64_t i = 0; i < inputs; i++)
        for (int64_t j = 0; j < xs[i].shape[0]; j++)
            ((float *)out[i].data)[j] = ((float *)xs[i].data)[j] * by[0];
    return 0;
}

/* The step of an optimiser, in place. */
int step(void *context, DLTensor *args, int count) {
    int64_t size;
    double rate = dlb_get_float(context, 0);
    DLTensor *xs = dlb_get_tensors(context, args, 0, &size);
    DLTensor *grads = dlb_get_tensors(context, args, 1, NULL);
    for (int64_t i = 0; i < size; i++) {
        int64_t total = 1;
        for (int32_t dim = 0; dim < xs[i].ndim; dim++)
            total *= xs[i].shape[dim];
        for (int64_t j = 0; j < total; j++)
            ((float *)xs[i].data)[j] -= (float)rate * ((float *)grads[i].data)[j];
    }
    return 0;
}

/* Writes one element beside the second of the results. */
int stray(void *context, DLTensor *args, int count) {
    int64_t size;
    DLTensor *out = dlb_get_tensors(context, args, 1, &size);
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < out[i].shape[0] + (i == 1); j++)
            ((float *)out[i].data)[j] = 1;
    return 0;
}

void dots(const float *const *xs, int64_t xs_count, const float *const *ys, int64_t k, int64_t n,
          float *out) {
    for (int64_t i = 0; i < xs_count; i++) {
        out[i] = (float)(k - xs_count);
        for (int64_t j = 0; j < n; j++)
            out[i] += xs[i][j] * ys[i][j];
    }
}

void split(const float *x, float *const *out, int64_t out_count, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < out_count; k++)
            out[k][i] = x[i] * (float)(k + 1);
}
"""
DOTS = (
    "void(const float *const *xs, int64_t xs_count, const float *const *ys, int64_t k, int64_t n, "
    "float *out)"
)


def f32(*values: float) -> Any:
    return np.array(values, "float32")


def compiled(name: str, schema: str, **options: Any) -> dlbridge.Kernel:
    return dlbridge.compile_c(SOURCE, name, schema, **options)


def scale_vjp(by: Any, xs: Any, grad: Any) -> Any:
    total = by * 0
    for x, cotangent in zip(xs, grad, strict=True):
        total = total + (x * cotangent) @ (x * 0 + 1)
    return total, [by * each for each in grad]


@pytest.fixture(scope="module")
def scale() -> dlbridge.Kernel:
    schema = "lists::scale(by: f32[], xs: f32[?n][k]) -> f32[?n][k]"
    return compiled("scale", schema, vjp=scale_vjp)


@pytest.fixture(scope="module")
def step() -> dlbridge.Kernel:
    return compiled("step", "lists::step(xs!: f32[?...][], grads: f32[?...][], *, rate: float)")


@pytest.fixture(scope="module")
def stack() -> dlbridge.Kernel:
    return dlbridge.wrap(
        np.stack,
        "lists::stack(arrays: f64[*s][k]) -> f64[k, *s]",
        abi="python:numpy",
        vjp=lambda arrays, grad: [grad[at] for at in range(len(arrays))],
    )


# ---- the notation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flat", "torch"),
    [
        (
            "a::f(xs: f32[n][k]) -> f32[k, n]",
            "a::f(xs[0]: f32[n], xs[1]: f32[n]) -> f32[2, n]",
            "f(Tensor[] xs) -> Tensor",
        ),
        (
            "a::f(x: f32[k], xs!: float[?...][k], *, a: int) -> (float[?...][], i8[k+1])",
            (
                "a::f(x: f32[2], xs[0]!: float[...[0]], xs[1]!: float[...[1]], *, a: int) -> "
                "(out_0[0]: float[...[0]], out_0[1]: float[...[1]], out_1: i8[3])"
            ),
            "f(Tensor x, Tensor(a!)[] xs, *, SymInt a) -> (Tensor[], Tensor)",
        ),
        (
            "a::f(xs: int[][], ys: f32[2*?n, ?*s][]) -> f32[3][1]",
            (
                "a::f(xs[0]: int[], xs[1]: int[], ys[0]: f32[2*n[0], *s[0]], "
                "ys[1]: f32[2*n[1], *s[1]]) -> (out[0]: f32[3])"
            ),
            "f(Tensor[] xs, Tensor[] ys) -> Tensor[]",
        ),
    ],
)
def test_a_schema_is_written_read_and_flattened(text: str, flat: str, torch: str) -> None:
    schema = Schema.parse(text)
    assert str(schema) == text
    assert schema.torch_schema() == torch
    lists = [part for part in schema.tensors if part.many is not None]
    made = flatten(schema, [2] * len(lists)).schema
    assert str(made).replace("i8|i16|i32|i64[", "int[") == flat


def test_like_is_the_type_of_a_list_as_well() -> None:
    schema = Schema.parse("a::f(xs: f32[?n][k], ys: like xs) -> like xs")
    assert str(schema) == "a::f(xs: f32[?n][k], ys: f32[?n][k]) -> f32[?n][k]"


def test_numbers_and_tensors_in_lists_are_told_apart() -> None:
    schema = Schema.parse("a::f(xs: float[2][], axes: int[], w: float[])")
    assert [part.kind for part in schema.parameters] == ["tensor", "int[]", "tensor"]
    assert str(Schema.parse(str(schema))) == str(schema)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "a::f(x: f32[?n])",
            "'?n': '?' marks what each tensor of a list has, and 'x' is not a list",
        ),
        ("a::f(xs: f32[n][]) -> f32[?n]", "'\\?' marks what each tensor of a list has"),
        ("a::f(xs: f32[n][]?)", "'xs' is a list of tensors, which may be empty, not None"),
        ("a::f(xs: f32[n][][])", "a list of tensors cannot hold lists"),
        ("a::f(xs: f32[n][4097])", "at most 4096 tensors in a list, got 4097"),
        ("a::f(xs: f32[n][k], k: int)", "'k' is the length of 'xs', and an argument as well"),
        ("a::f(xs: f32[*k][k])", "'k' is the length of 'xs', and a pack as well"),
        ("a::f(xs: f32[n][]) -> f32[n][]", "the length of 'out' is not determined"),
        ("a::f(xs: f32[n][k]) -> f32[n][m]", "the length of 'out' is not determined"),
        ("a::f(xs: f32[n][k]) -> f32[?m][k]", "'?m' of 'out' is not determined"),
        ("a::f(xs: f32[n][-1])", "expected a number or a name for the length of the list"),
        ("a::f(xs: f32[n][_])", "a list of any length has nothing in its brackets, as in f32[n][]"),
        ("a::f(xs: f32[?_][])", "'_' may differ between the tensors anyway: leave out '\\?'"),
        ("a::f(xs: f32[*?n][])", "expected the name of a pack after '*', got '?'"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Schema.parse(text)
    assert why.replace("\\", "") in str(caught.value)


counts = st.lists(st.none() | st.integers(0, 3), max_size=6)


@given(counts)
def test_gathering_undoes_spreading(counts: list[int | None]) -> None:
    row = list(range(sum(1 if each is None else each for each in counts)))
    assert spread(gather(row, counts), counts) == row


def test_vjp_of_a_schema_has_lists() -> None:
    schema = Schema.parse("a::f(xs: f32[_, n][k], y: f32[n]) -> f32[n][k]").vjp()
    assert str(schema) == (
        "a::f_vjp(xs: f32[?xs_0, n][k], y: f32[n], grad: f32[n][k]) -> "
        "(grad_xs: f32[?xs_0, n][k], grad_y: f32[n])"
    )


# ---- calls ---------------------------------------------------------------------------------------


def test_lists_of_any_length(scale: dlbridge.Kernel) -> None:
    by = np.float32(3) + np.zeros((), "float32")
    assert scale(by, []) == []
    for length in (1, 2, 15):
        found = scale(by, [f32(*range(size)) for size in range(length)])
        assert [each.tolist() for each in found] == [
            [3.0 * at for at in range(size)] for size in range(length)
        ]
    assert [each.tolist() for each in scale(by, (f32(1), f32(2, 3)))] == [[3], [6, 9]]


def test_calls_in_c_and_in_python_agree(scale: dlbridge.Kernel, step: dlbridge.Kernel) -> None:
    """From the second call with the same lengths on, plain tensors are called in C."""
    by, xs = np.full((), 2, "float32"), [f32(1), f32(2, 3)]
    for call in (scale, scale.numpy):
        for several in (xs, tuple(xs)):
            found = call(by, several)
            assert type(found) is list
            assert [each.tolist() for each in found] == [[2], [4, 6]]
        assert call(by, xs=xs)[1].tolist() == [4, 6]
        assert call(by, []) == []
        assert call(by, xs[:1])[0].tolist() == [2]
        outs = (f32(0), f32(0, 0))
        assert call(by, xs, out=outs)[1] is outs[1]
        with pytest.raises(UnsupportedTypeError, match=r"'xs\[1\]': expected a tensor, got str"):
            call(by, [xs[0], "x"])
        with pytest.raises(UnsupportedTypeError, match="'rate': not expected"):
            call(by, xs, rate=1)
    torch = pytest.importorskip("torch")
    for _ in range(2):
        with pytest.raises(UnsupportedTypeError, match="numpy"):
            scale.torch(by, xs)
        with pytest.raises(UnsupportedTypeError, match="torch"):
            scale(torch.tensor(2.0), xs)
        rows = scale(torch.tensor(2.0), [torch.ones(1), torch.ones(2, requires_grad=True)])
        assert [row.requires_grad for row in rows] == [False, True] or rows[1].requires_grad
        x = torch.ones(3)
        version = x._version
        step([x], [x.clone()], rate=1)
        assert x._version > version


def test_results_beside_lists_that_are_called_in_c() -> None:
    source = """
    #include "dlbridge_kernel.h"
    int ends(dlb_context *context, DLTensor *args, int count) {
        for (int i = 1; i < count; i++)
            ((float *)args[i].data)[0] = (float)i * ((const float *)args[0].data)[0];
        return 0;
    }
    """
    x = f32(5)
    for results, expected in (
        ("(a: f32[1], b: f32[1][2], c: f32[1])", [[5], [[10], [15]], [20]]),
        ("(a: f32[1][1], b: f32[1][0])", [[[5]], []]),
        ("f32[1][1]", [[5]]),
        ("f32[1][0]", []),
    ):
        ends = dlbridge.compile_c(source, "ends", f"lists::ends(xs: f32[1][]) -> {results}")
        for _ in range(2):
            found = ends([x])
            lists = [[e.tolist() for e in r] if isinstance(r, list) else r.tolist() for r in found]
            assert lists == expected


def test_the_cost_of_a_call_knows_the_lengths_of_lists() -> None:
    schema = Schema.parse("lists::cost(xs: f32[n][k], ys: f32[?m][j])")
    flat = flatten(schema, (3, 2))
    assert encode_cost(flat.schema, "n * k + j", flat.known) == (
        ("n", 0), ("c", 3), ("*", 0), ("c", 2), ("+", 0)
    )  # fmt: skip
    step = compiled(
        "step", "lists::cheap(xs!: f32[n][k], grads: f32[n][k], *, rate: float)", cost="n*k"
    )
    x = f32(1)
    step([x], [f32(1)], rate=1)
    assert x.tolist() == [0]
    with pytest.raises(ArgumentError, match=r"cost: 'm' is not a dimension.* it has .*n.*, k, j"):
        dlbridge.wrap(lambda xs, ys: None, schema, abi="python:numpy", cost="m")


def test_one_tensor_twice(scale: dlbridge.Kernel) -> None:
    x = f32(1, 2)
    assert [each.tolist() for each in scale(np.ones((), "f4"), [x, x])] == [[1, 2], [1, 2]]


def test_out_is_a_list(scale: dlbridge.Kernel) -> None:
    outs = [f32(0), f32(0, 0)]
    found = scale(np.ones((), "f4"), [f32(5), f32(6, 7)], out=outs)
    assert found[0] is outs[0]
    assert outs[1].tolist() == [6, 7]
    with pytest.raises(ArgumentError, match="out: expected 2 tensors for 'out', got 1"):
        scale(np.ones((), "f4"), [f32(5), f32(6, 7)], out=outs[:1])
    with pytest.raises(UnsupportedTypeError, match="'out': expected a list or tuple of tensors"):
        scale(np.ones((), "f4"), [f32(5)], out=outs[0])


def test_lists_are_written_in_place(step: dlbridge.Kernel) -> None:
    xs = [f32(1, 2), np.ones((2, 2), "float32")]
    assert step(xs, [f32(1, 1), np.eye(2, dtype="float32")], rate=0.5) is None
    assert xs[0].tolist() == [0.5, 1.5]
    assert xs[1].tolist() == [[0.5, 1], [1, 0.5]]
    assert step.numpy([], [], rate=1) is None


def test_results_beside_lists() -> None:
    kernel = dlbridge.wrap(
        lambda xs, *, by: (sum(xs), [by * x for x in xs]),
        "lists::both(xs: f64[n][k], *, by: float) -> (total: f64[n], parts: f64[n][k])",
        abi="python:numpy",
    )
    total, parts = kernel([np.ones(2), np.arange(2.0)], by=2)
    assert (total.tolist(), [each.tolist() for each in parts]) == ([1, 2], [[2, 2], [0, 2]])
    outs = (np.zeros(2), [np.zeros(2)])
    assert kernel([np.ones(2)], by=3, out=outs)[1][0] is outs[1][0]
    assert outs[1][0].tolist() == [3, 3]


def test_a_function_that_writes_into_out_gets_lists() -> None:
    def halves(x: Any, out: Any) -> None:
        out[0][...], out[1][...] = x[: len(x) // 2], x[len(x) // 2 :]

    kernel = dlbridge.wrap(halves, "lists::halves(x: f64[2*n]) -> f64[n][2]", abi="python:numpy")
    assert [each.tolist() for each in kernel(np.arange(4.0))] == [[0, 1], [2, 3]]


def test_c_signatures_take_arrays_of_addresses() -> None:
    dots = compiled("dots", "lists::dots(xs: f32[n][k], ys: f32[n][k]) -> f32[k]", abi=DOTS)
    assert dots([f32(1, 2), f32(3, 4)], [f32(1, 1), f32(2, 2)]).tolist() == [3, 14]
    assert dots([f32(1, 2)], [f32(1, 1)]).tolist() == [3]
    split = compiled(
        "split",
        "lists::split(x: f32[n]) -> f32[n][3]",
        abi="void(const float *x, float *const *out, int64_t out_count, int64_t n)",
    )
    assert [each.tolist() for each in split(f32(1, 2))] == [[1, 2], [2, 4], [3, 6]]


@pytest.mark.parametrize(
    ("abi", "why"),
    [
        ("void(const float *xs, float *out)", "must be a pointer to pointers"),
        ("void(float *const *xs, float *out)", "must be const"),
        ("void(const double *const *xs, float *out)", "does not point to f32"),
        ("void(const float *const *xs, float xs_count, float *out)", "must be an integer"),
    ],
)
def test_c_signatures_are_checked(abi: str, why: str) -> None:
    function = dlbridge.load_library("libm.so.6")["cos"]
    with pytest.raises(ArgumentError, match=why):
        dlbridge.wrap(function, "lists::bad(xs: f32[n][]) -> f32[1]", abi=abi)


def test_a_scalar_that_is_called_as_the_length_of_a_list_is_that_scalar() -> None:
    fill = dlbridge.compile_c(
        "#include <stdint.h>\n"
        "void fill(float *const *xs, int64_t xs_count) { xs[0][0] = xs_count; }",
        "fill",
        "lists::fill(xs!: f32[?n][], xs_count: int)",
        abi="void(float *const *xs, int64_t xs_count)",
    )
    x = f32(2)
    fill([x], 5)
    assert x[0] == 5


def test_abis_without_lists_refuse_them() -> None:
    function = dlbridge.load_library("libm.so.6")["cos"]
    with pytest.raises(ArgumentError, match="'xs' is a list of tensors, which abi='pointers'"):
        dlbridge.wrap(function, "lists::bad(xs: f32[n][])", abi="pointers")


def test_a_function_of_other_parameters_is_refused_when_it_is_wrapped() -> None:
    with pytest.raises(UnsupportedTypeError, match="but it takes"):
        dlbridge.wrap(lambda: None, "lists::bad(xs: f32[n][])", abi="python:numpy")


# ---- refusals ------------------------------------------------------------------------------------


def test_anything_but_a_list_of_tensors_is_refused(scale: dlbridge.Kernel) -> None:
    by, x = np.ones((), "f4"), f32(1)
    for xs, why in (
        (x, r"'xs': expected a list or tuple of tensors, got numpy.ndarray; pass \[x\]"),
        ([[x]], r"'xs\[0\]': expected a tensor, got list; a list of tensors cannot hold"),
        ([x, None], r"'xs\[1\]': expected a tensor, got NoneType"),
        ([x, 3.0], r"'xs\[1\]': expected a tensor, got float"),
        ([x, np.ones(1)], r"'xs\[1\]': expected f32\[n\[1\]\], got f64\[1\]"),
        (iter([x]), "'xs': expected a list or tuple of tensors"),
        (None, r"'xs': expected f32\[\?n\]\[k\], got None"),
    ):
        with pytest.raises(UnsupportedTypeError, match=why):
            scale(by, xs)


def test_too_many_tensors_are_refused(scale: dlbridge.Kernel) -> None:
    with pytest.raises(
        ArgumentError, match=r"at most 4096 tensors.* has 4097: 2048 tensors in 'xs'"
    ):
        scale(np.ones((), "f4"), [f32(1)] * 2048)


def test_lists_of_other_lengths_are_refused(step: dlbridge.Kernel) -> None:
    with pytest.raises(
        ArgumentError, match="'grads': expected a list of 1, as 'xs' is, got one of"
    ):
        step([f32(1)], [], rate=1)
    pair = dlbridge.wrap(
        lambda xs: xs[0] + xs[1], "lists::pair(xs: f64[n][2]) -> f64[n]", abi="python:numpy"
    )
    with pytest.raises(ArgumentError, match="'xs': expected a list of 2, got one of 3"):
        pair([np.ones(1)] * 3)


def test_each_tensor_has_extents_of_its_own_or_shared_ones(
    step: dlbridge.Kernel, stack: dlbridge.Kernel
) -> None:
    with pytest.raises(ArgumentError, match=r"'grads\[1\]': expected f32\[...\[1\]=\(2\)\], got"):
        step([f32(1), f32(1, 2)], [f32(1), f32(1)], rate=1)
    with pytest.raises(
        ArgumentError, match=r"'arrays\[1\]': expected f64\[\*s=\(1\)\], got f64\[2\]"
    ):
        stack([np.ones(1), np.ones(2)])


def test_results_that_an_empty_list_leaves_open_are_refused(stack: dlbridge.Kernel) -> None:
    with pytest.raises(ArgumentError, match=r"with 0 tensors in 'arrays': .* is not determined"):
        stack([])


def test_memory_shared_within_a_list_is_refused(step: dlbridge.Kernel) -> None:
    x = f32(1, 2)
    with pytest.raises(ExchangeError, match=r"memory shared with 'xs\[0\]'"):
        step([x, x], [f32(1, 2), f32(1, 2)], rate=1)
    assert x.tolist() == [1, 2]


def test_several_frameworks_are_refused(scale: dlbridge.Kernel, step: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UnsupportedTypeError, match=r"'xs\[1\]': expected a tensor of numpy"):
        scale(np.ones((), "f4"), [f32(1), torch.ones(1)])
    with pytest.raises(UnsupportedTypeError, match="no tensor determines the framework"):
        step([], [], rate=1)


def test_operators_of_onnx_runtime_have_no_lists(scale: dlbridge.Kernel) -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime

    with pytest.raises(ArgumentError, match="it has a list of tensors or an optional result, and"):
        dlbridge.register_onnxruntime(onnxruntime.SessionOptions(), scale)


def test_operations_of_a_graph_have_no_lists(scale: dlbridge.Kernel) -> None:
    import dlbridge.graph as tf

    with tf.Graph().as_default(), pytest.raises(ArgumentError, match="has a list of tensors"):
        tf.call(scale, [np.ones((), "f4"), f32(1)])


def test_stubs_have_lists(scale: dlbridge.Kernel, step: dlbridge.Kernel) -> None:
    from dlbridge.frameworks.stubs import write_stub
    from dlbridge.kernels.exports import Export

    text = write_stub(
        [Export(each.__name__, 0, each.schema, "dltensors", "", "", {}) for each in (scale, step)],
        ["torch", "jax"],
    )
    xs = "list[torch.Tensor] | tuple[torch.Tensor, ...]"
    assert f"xs: {xs}, *, out: list[torch.Tensor] | None = None) -> list[torch.Tensor]" in text
    assert (
        "grads: list[jax.Array] | tuple[jax.Array, ...], *, rate: float) -> list[jax.Array]" in text
    )


def test_debug_mode_names_the_tensor_of_a_list() -> None:
    stray = compiled("stray", "lists::stray(xs: f32[n][k]) -> f32[n][k]")
    with dlbridge.debug_kernels(), pytest.raises(KernelDefectError, match=r"'out\[1\]'"):
        stray([f32(1, 2), f32(1, 2)])


# ---- one object, whatever the lengths ------------------------------------------------------------


def test_kernels_of_lengths_are_kept_and_freed() -> None:
    kernel = compiled("scale", "lists::freed(by: f32[], xs: f32[?n][k]) -> f32[?n][k]")
    kernel(np.ones((), "f4"), [f32(1)])
    assert kernel.lists is not None
    first = kernel.lists.kernel((1,))
    assert kernel.lists.kernel((1,)) is first
    alive = weakref.ref(first)
    again = compiled("scale", "lists::freed(by: f32[], xs: f32[?n][k]) -> f32[?n][k]")
    del kernel, first
    gc.collect()
    assert alive() is None
    assert again(np.ones((), "f4"), [f32(2)])[0].tolist() == [2]


def test_help_and_signature(scale: dlbridge.Kernel) -> None:
    text = scale.__doc__ or ""
    assert "xs: list or tuple of k tensors, each a float32 tensor of shape [?n]" in text
    assert "out: a list of tensors to write the results into" in text
    assert list(scale.__signature__.parameters) == ["by", "xs", "out"]
    assert scale.__signature__.return_annotation == "f32[?n][k]"


# ---- frameworks ----------------------------------------------------------------------------------

REFERENCES: dict[str, Any] = {
    "scale": lambda by, xs: [by * x for x in xs],
    "stack": lambda arrays: np.stack(arrays),
}

SHAPES = [(1 + at % 3, at % 4) if at % 2 else (at,) for at in range(100)]


@pytest.mark.full
@pytest.mark.parametrize("framework", ["numpy", "dlbridge", "torch", "jax"])
def test_a_hundred_tensors_in_a_list(
    framework: str, scale: dlbridge.Kernel, step: dlbridge.Kernel
) -> None:
    module = dlbridge if framework == "dlbridge" else pytest.importorskip(framework)
    convert = {
        "numpy": np.copy, "dlbridge": lambda x: dlbridge.from_dlpack(x.copy()),
        "torch": lambda x: module.tensor(x), "jax": lambda x: module.numpy.asarray(x),
    }[framework]  # fmt: skip
    old = [np.full(shape, at, "float32") for at, shape in enumerate(SHAPES)]
    xs, grads = map(convert, old), [convert(np.ones_like(x)) for x in old]
    xs = list(xs)
    found = step(xs, grads, rate=0.5)
    for x, new in zip(old, found if framework == "jax" else xs, strict=True):
        np.testing.assert_array_equal(np.asarray(new), x - 0.5)
    rows = [np.full(at, at, "float32") for at in range(100)]
    scaled = scale(convert(np.full((), 2, "float32")), [convert(row) for row in rows])
    for row, each in zip(rows, scaled, strict=True):
        np.testing.assert_array_equal(np.asarray(each), row * 2)


@pytest.mark.full
def test_a_hundred_tensors_in_programs_and_gradients(
    scale: dlbridge.Kernel, step: dlbridge.Kernel
) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    xs = [torch.full(shape, 2.0) for shape in SHAPES]
    program = torch.compile(
        lambda xs: step(xs, [x * x for x in xs], rate=0.5), backend="aot_eager", fullgraph=True
    )
    program(xs)
    assert all((x == 0).all() for x in xs)
    rows = [torch.full((at,), float(at), requires_grad=True) for at in range(100)]
    sum([row.sum() for row in scale(torch.tensor(3.0), rows)]).backward()
    assert all((row.grad == 3).all() for row in rows)
    arrays = [jax.numpy.full(shape, 2.0) for shape in SHAPES]
    found = jax.jit(lambda xs: step(xs, [x * x for x in xs], rate=0.5))(arrays)
    assert all((x == 0).all() for x in found)


def test_a_hundred_tensors_that_overlap_or_must_be_copied(step: dlbridge.Kernel) -> None:
    xs, grads = ([np.ones(at, "float32") for at in range(100)] for _ in range(2))
    memory = np.ones(200, "float32")
    xs[70] = memory[:140:2]
    step(xs, grads, rate=0.5)
    assert memory.tolist() == [0.5, 1] * 70 + [1] * 60
    xs[90] = memory[110:]
    with pytest.raises(ExchangeError, match=r"'xs\[90\]'.* shared with 'xs\[70\]'"):
        step(xs, grads, rate=0.5)
    grads[90] = xs[90] = np.ones(90, "float32")
    with pytest.raises(ExchangeError, match=r"'xs\[90\]'.* shared with 'grads\[90\]'"):
        step(xs, grads, rate=0.5)
    assert memory.tolist() == [0.5, 1] * 70 + [1] * 60


def test_a_hundred_tensors_of_a_python_function_and_in_debug_mode(step: dlbridge.Kernel) -> None:
    total = dlbridge.wrap(
        lambda xs: sum(xs), "lists::total(xs: f64[n][]) -> f64[n]", abi="python:numpy"
    )
    assert total([np.full(2, at, "float64") for at in range(100)]).tolist() == [4950, 4950]
    xs = [np.ones(3, "float32") for _ in range(100)]
    stray = compiled("stray", "lists::stray(xs: f32[n][k]) -> f32[n][k]")
    with dlbridge.debug_kernels():
        step(xs, xs[:0] + [x.copy() for x in xs], rate=1)
        with pytest.raises(KernelDefectError, match=r"'out\[1\]'"):
            stray(xs)
    assert all((x == 0).all() for x in xs)


def take_step(xs: Any, grads: Any, *, rate: float) -> None:
    for x, grad in zip(xs, grads, strict=True):
        x -= rate * grad


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "onnxruntime", "dlbridge"])
def test_operators_in_frameworks(
    framework: str, scale: dlbridge.Kernel, step: dlbridge.Kernel, stack: dlbridge.Kernel
) -> None:
    if framework != "dlbridge":
        pytest.importorskip(framework)
    check_kernel(scale, REFERENCES["scale"], frameworks=[framework])
    check_kernel(stack, REFERENCES["stack"], frameworks=[framework], sizes={"k": 3})
    check_kernel(step, take_step, frameworks=[framework], scalars={"rate": 0.5})


def test_check_kernel_finds_a_wrong_list(scale: dlbridge.Kernel) -> None:
    with pytest.raises(AssertionError, match=r"numpy.values: failed.*out\[1\]"):
        check_kernel(scale, lambda by, xs: [by * xs[0], xs[1]], frameworks=["numpy"])


TENSORFLOW = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_lists_of_tensors as lists
from dlbridge.testing import check_kernel
schema = "lists::scale(by: f32[], xs: f32[?n][k]) -> f32[?n][k]"
import tensorflow as tf
def vjp(by, xs, grad):
    total = by * 0
    for x, cotangent in zip(xs, grad, strict=True):
        total += tf.reduce_sum(x * cotangent)
    return total, [by * each for each in grad]
scale = lists.compiled("scale", schema, vjp=vjp)
check_kernel(scale, lists.REFERENCES["scale"], frameworks=["tensorflow"])
schema = "lists::step(xs!: f32[?...][], grads: f32[?...][], *, rate: float)"
step = lists.compiled("step", schema)
check_kernel(step, lists.take_step, frameworks=["tensorflow"], scalars={{"rate": 0.5}})
(x,) = step([tf.ones(2)], [tf.ones(2)], rate=1.0)
assert x.numpy().tolist() == [0, 0]
many = [tf.ones(at % 5) for at in range(100)]
for run in (step, tf.function(step)):
    assert all(not tf.reduce_any(x != 0) for x in run(many, many, rate=1.0))
assert step.tensorflow([], [], rate=1.0) == []
class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], "float32")])
    def __call__(self, x):
        return scale(tf.constant(2.0), [x, x])
tf.saved_model.save(Model(), sys.argv[1])
"""
SAVED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_lists_of_tensors as lists
import tensorflow as tf
lists.compiled("scale", "lists::scale(by: f32[], xs: f32[?n][k]) -> f32[?n][k]")
found = tf.saved_model.load(sys.argv[1])(tf.ones(3))
assert [each.numpy().tolist() for each in found] == [[2, 2, 2]] * 2
"""


@pytest.mark.full
def test_tensorflow_and_its_saved_models(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    for program in (TENSORFLOW, SAVED):
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-4000:]


def test_torch_autograd_and_torch_func(scale: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    by, x = torch.tensor(2.0), torch.tensor([1.0, 2.0], requires_grad=True)
    found = scale(by, [x, torch.ones(1), x])
    (found[0].sum() + 3 * found[2].sum()).backward()
    assert x.grad.tolist() == [8, 8]
    plain = x.detach()
    primals, tangents = torch.func.jvp(lambda x: scale(by, [x]), (plain,), (torch.ones(2),))
    assert (primals[0].tolist(), tangents[0].tolist()) == ([2, 4], [2, 2])
    loss = lambda x: scale(by, [x * x])[0].sum()  # noqa: E731
    assert torch.func.hessian(loss)(plain).tolist() == [[4, 0], [0, 4]]
    assert torch.ops.lists.scale(by, [plain])[0].tolist() == [2, 4]


def test_torch_counts_versions_and_keeps_gradients(step: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    x, version = torch.ones(2), torch.ones(2)._version
    step([x], [torch.ones(2)], rate=1)
    assert (x.tolist(), x._version) == ([0, 0], version + 1)
    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(ExchangeError, match=r"'xs\[0\]'.*requires_grad"):
        step([leaf], [torch.ones(2)], rate=1)
    with torch.no_grad():
        step([leaf], [torch.ones(2)], rate=1)
    assert leaf.tolist() == [0, 0]
    with pytest.raises(KernelError, match=r"no meaning within torch\.vmap"):
        torch.vmap(lambda x: step([x], [x], rate=1))(torch.ones(2, 2))


def test_torch_fx_records_the_operator(scale: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return scale(x[0], [x, x])[1].sum()

    made = torch.fx.symbolic_trace(Module())
    assert torch.ops.lists.scale.default in [node.target for node in made.graph.nodes]
    assert made(torch.ones(2)).item() == 2


def test_torch_compile_writes_lists_in_place(step: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(xs: list[Any]) -> Any:
        step(xs, [x * 0 + 1 for x in xs], rate=0.5)
        return xs[0] * 2

    xs = [torch.ones(2), torch.ones(3)]
    assert run(xs).tolist() == [1, 1]
    assert xs[1].tolist() == [0.5] * 3


def test_torch_takes_empty_lists(step: dlbridge.Kernel, scale: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    count = dlbridge.wrap(
        lambda xs: np.full(2, len(xs), "f4"),
        "lists::count(xs: f32[?...][]) -> f32[2]",
        abi="python:numpy",
    )
    assert step.torch([], [], rate=1) is None
    assert count.torch([]).tolist() == [0, 0]
    assert torch.ops.lists.count([]).tolist() == [0, 0]
    assert count([torch.ones(3)]).tolist() == [1, 1]
    added = torch.compile(lambda x: count.torch([]) + x, fullgraph=True, backend="aot_eager")
    assert added(torch.ones(2)).tolist() == [1, 1]


def test_jax_returns_what_is_written(step: dlbridge.Kernel, scale: dlbridge.Kernel) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    (x,) = step([jnp.ones(2)], [jnp.ones(2)], rate=1)
    assert x.tolist() == [0, 0]
    assert step.jax([], [], rate=1) == []
    found = jax.jit(lambda x: step([x], [x], rate=0.5))(jnp.ones(2))
    assert found[0].tolist() == [0.5, 0.5]
    loss = lambda xs: sum(x.sum() for x in scale(jnp.float32(2), xs))  # noqa: E731
    assert [x.tolist() for x in jax.grad(loss)([jnp.ones(2), jnp.ones(1)])] == [[2, 2], [2]]
    assert jax.hessian(lambda x: loss([x * x]))(jnp.ones(1)).tolist() == [[4]]
    with pytest.raises(ExchangeError, match="JAX arrays are immutable"):
        scale(jnp.float32(1), [jnp.ones(1)], out=[jnp.ones(1)])


EXPORTED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_lists_of_tensors as lists
import jax
import jax.export
from pathlib import Path
file = Path(sys.argv[1]) / "program"
schema = "lists::scale(by: f32[], xs: f32[?n][k]) -> f32[?n][k]"
scale = lists.compiled("scale", schema)
x = jax.numpy.ones(2)
if not file.exists():
    check = jax.export.DisabledSafetyCheck.custom_call("dlbridge")
    function = jax.jit(lambda x: scale(jax.numpy.float32(2), [x, x, x]))
    file.write_bytes(jax.export.export(function, disabled_checks=[check])(x).serialize())
else:
    found = jax.export.deserialize(bytearray(file.read_bytes())).call(x)
    assert [each.tolist() for each in found] == [[2, 2]] * 3
"""


@pytest.mark.full
def test_programs_of_jax_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    for _ in range(2):
        command = [sys.executable, "-c", EXPORTED, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("own", ["torch", "jax"])
def test_derived_gradients(own: str) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    kernel = dlbridge.wrap(
        lambda xs, *, a: (sum(x * x for x in xs) * a, [x * a for x in xs]),
        f"lists::derived_{own}(xs: f32[n][k], *, a: float) -> (f32[n], f32[n][k])",
        abi=f"python:{own}",
        vjp=own,
    )
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    total, parts = kernel([x, x], a=3.0)
    (total.sum() + parts[1].sum()).backward()
    assert x.grad.tolist() == [15, 27]
    gradient = jax.grad(lambda x: kernel([x, x], a=3.0)[0].sum())(jax.numpy.ones(2))
    assert gradient.tolist() == [12, 12]


def test_a_kernel_as_vjp_gives_lists(scale: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    gradient = dlbridge.wrap(
        lambda by, xs, grad: (
            sum((x * g).sum() for x, g in zip(xs, grad, strict=True)),
            [by * g for g in grad],
        ),
        "lists::scale_vjp(by: f32[], xs: f32[?n][k], grad: f32[?n][k]) -> "
        "(grad_by: f32[], grad_xs: f32[?n][k])",
        abi="python:numpy",
    )
    kernel = dlbridge.wrap(scale, name="lists::scale_by_kernel", vjp=gradient)
    by, x = torch.tensor(2.0, requires_grad=True), torch.tensor([1.0, 2.0], requires_grad=True)
    found = kernel(by, [x, torch.ones(1)])
    (found[0].sum() + found[1].sum()).backward()
    assert (by.grad.item(), x.grad.tolist()) == (4, [2, 2])
    with pytest.raises(UnsupportedTypeError, match="takes 'xs' as tensor, but here it is list"):
        dlbridge.wrap(
            scale,
            name="lists::wrong",
            vjp=dlbridge.wrap(
                lambda xs: xs, "lists::wrong_vjp(xs: f32[n]) -> f32[n]", abi="python:numpy"
            ),
        )


def test_a_vjp_of_a_wrong_length_is_refused(scale: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    kernel = dlbridge.wrap(scale, name="lists::short", vjp=lambda by, grad: (None, grad[:1]))
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(UnsupportedTypeError, match="must return a list of 2 gradients"):
        kernel(torch.tensor(2.0), [x, x])[0].sum().backward()


def test_batches_by_a_function_get_lists(scale: dlbridge.Kernel) -> None:
    torch = pytest.importorskip("torch")
    seen = []

    def batch(size: int, is_batched: Any, by: Any, xs: Any) -> Any:
        seen.append((size, is_batched))
        return [x * by if each else (x * by).expand(size, *x.shape) for x, each in
                zip(xs, is_batched[1], strict=True)]  # fmt: skip

    kernel = dlbridge.wrap(scale, name="lists::batched", batch=batch)
    found = torch.vmap(lambda x: kernel(torch.tensor(2.0), [x, torch.ones(1)]))(torch.ones(3, 2))
    assert [tuple(each.shape) for each in found] == [(3, 2), (3, 1)]
    assert seen == [(3, (False, [True, False]))]


@pytest.mark.parametrize("wrong", [None, [], (1, 2)])
def test_batches_of_other_results_are_refused(scale: dlbridge.Kernel, wrong: Any) -> None:
    torch = pytest.importorskip("torch")
    kernel = dlbridge.wrap(scale, name="lists::misbatched", batch=lambda *args: wrong)
    with pytest.raises(UnsupportedTypeError, match="batch must return 2 tensors, got"):
        torch.vmap(lambda x: kernel(torch.tensor(2.0), [x, x]))(torch.ones(3, 2))


# ---- libraries -----------------------------------------------------------------------------------

LIBRARY = r"""
#include "dlbridge_kernel.hpp"

DLB_KERNEL(total) {
    dlb::list<DLTensor> xs = call.tensors(0);
    dlb::flat<float> out = call.flat<float>(int(xs.size()));
    for (float &each : out)
        each = 0;
    for (const DLTensor &x : xs)
        for (int64_t i = 0; i < out.size(); i++)
            out[i] += dlb::flat<const float>(x)[i];
}
DLB_EXPORT(total, "lists_of_a_library::total(xs: f32[n][]) -> f32[n]");
"""


def test_a_library_in_cpp_exports_lists(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source, library = tmp_path / "library.cpp", tmp_path / "library.so"
    source.write_text(LIBRARY)
    include = str(dlbridge.kernels.library.include_directory())
    options = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-I", include]
    subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True)
    loaded = dlbridge.load_library(library)
    assert loaded.total([f32(1, 2), f32(3, 4), f32(5, 6)]).tolist() == [9, 12]


OUTSIDE = r"""
#include "dlbridge_kernel.hpp"
DLB_KERNEL(outside) { call.tensors(2); }
"""


def test_a_place_that_the_schema_has_not_is_refused_in_cpp() -> None:
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    for schema in ("lists::outside(xs: f32[n][]) -> f32[n]", "lists::outside(x: f32[n]) -> f32[n]"):
        kernel = dlbridge.compile_cpp(OUTSIDE, "outside", schema)
        with pytest.raises(KernelError, match="argument or result 2 of 2"):
            kernel([f32(1)] * 3 if "[]" in schema else f32(1))


def test_names_that_mean_nothing_are_refused_with_those_that_do() -> None:
    with pytest.raises(
        ArgumentError, match="'n' means nothing here; names are xs, xs_count, k, st"
    ):
        dlbridge.compile_c(
            "#include <stdint.h>\nvoid f(float *const *xs, int64_t n) {}",
            "f",
            "lists::f(xs!: f32[?n][k])",
            abi="void(float *const *xs, int64_t n)",
        )


def test_lengths_are_those_of_the_call() -> None:
    schema = Schema.parse("a::f(x: f32[n], xs: f32[n][], ys: f32[?n][2])")
    assert lengths_of(schema, ["x", ["a"] * 3, ["b", "c"]]) == (3, 2)
