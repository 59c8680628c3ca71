"""Optional results: `norm(x: f32[n], *, save: bool) -> (y: f32[n], mean: f32[]? if save)`."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.kernels.schema import Schema
from dlbridge.testing import check_kernel

TYPE = "(x: f32[n, m], *, save: bool = False) -> (y: f32[n, m], total: f32[n]? if save)"
SOURCE = r"""
#include "dlbridge_kernel.h"

static void compute(const float *x, int64_t n, int64_t m, float *y, float *total) {
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int64_t j = 0; j < m; j++) {
            y[i * m + j] = 2 * x[i * m + j];
            sum += x[i * m + j];
        }
        if (total)
            total[i] = sum;
    }
}

int norm(void *context, DLTensor *args, int count) {
    int64_t found;
    DLTensor *total = dlb_get_tensors(context, args, 2, &found);
    if (found != dlb_get_int(context, 0) || count != 2 + found)
        return dlb_set_error(context, "%d tensors", count);
    compute(args[0].data, args[0].shape[0], args[0].shape[1], args[1].data,
            found ? total->data : NULL);
    return 0;
}

/* The gradient of a bias that may be missing stands before one that is always there. */
void backward(const float *grad, const float *bias, int64_t n, float *first, float *last) {
    for (int64_t i = 0; i < n; i++) {
        if (bias)
            first[i] = grad[i] + bias[i];
        last[i] = bias && !first ? -1 : 2 * grad[i];
    }
}
"""


def reference(x: Any, *, save: bool = False) -> Any:
    return 2 * x, x.sum(-1) if save else None


def gradient(grad_y: Any, grad_total: Any) -> Any:
    return 2 * grad_y + (0 if grad_total is None else grad_total[..., None])


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The same kernel in C, by `dltensors` and by its signature, and as a function of NumPy."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    return SimpleNamespace(
        dltensors=dlbridge.compile_c(
            SOURCE, "norm", f"optional::dltensors{TYPE}", vjp=gradient
        ),
        raw=dlbridge.compile_c(
            SOURCE.replace("static void", "void"), "compute", f"optional::raw{TYPE}", vjp=gradient,
            abi="void(const float *x, int64_t n, int64_t m, float *y, float *total)",
        ),
        function=dlbridge.wrap(
            reference, f"optional::function{TYPE}", abi="python:numpy", vjp=gradient
        ),
        backward=dlbridge.compile_c(
            SOURCE, "backward",
            "optional::backward(grad: f32[n], bias: f32[n]?) -> (f32[n]? if bias, f32[n])",
            abi="void(const float *grad, const float *bias, int64_t n, float *out_0, float *out_1)",
        ),
    )  # fmt: skip


KINDS = pytest.mark.parametrize("kind", ["dltensors", "raw", "function"])
X = np.arange(6, dtype="float32").reshape(2, 3)
TOTAL = X.sum(1)


# ---- calls ---------------------------------------------------------------------------------------


@KINDS
def test_a_result_is_there_or_none(kernels, kind: str) -> None:
    kernel = getattr(kernels, kind)
    y, total = kernel(X)
    assert total is None
    np.testing.assert_array_equal(y, 2 * X)
    y, total = kernel(X, save=True)
    np.testing.assert_array_equal(y, 2 * X)
    np.testing.assert_array_equal(total, TOTAL)
    y, total = kernel.numpy(X[:0], save=np.True_)
    assert (y.shape, total.shape) == ((0, 3), (0,))


def test_an_argument_that_may_be_none_decides(kernels) -> None:
    grad, bias = np.ones(3, "float32"), np.full(3, 2, "float32")
    first, last = kernels.backward(grad, None)
    assert first is None
    np.testing.assert_array_equal(last, 2 * grad)
    first, last = kernels.backward(grad, bias)
    np.testing.assert_array_equal(first, 3 * grad)
    np.testing.assert_array_equal(last, 2 * grad)


@KINDS
def test_out_has_none_for_what_is_not_there(kernels, kind: str) -> None:
    kernel = getattr(kernels, kind)
    y, total = np.empty_like(X), np.empty(2, "float32")
    found = kernel(X, out=(y, None))
    assert found[0] is y
    assert found[1] is None
    np.testing.assert_array_equal(y, 2 * X)
    found = kernel(X, save=True, out=(y, total))
    assert found[1] is total
    np.testing.assert_array_equal(total, TOTAL)
    with pytest.raises(ArgumentError, match="out: expected a tensor for 'total', as save says"):
        kernel(X, save=True, out=(y, None))
    with pytest.raises(ArgumentError, match="out: expected None for 'total', as save says"):
        kernel(X, out=(y, total))


def test_a_function_may_write_into_out() -> None:
    def norm(x, *, save, out):
        out[0][:] = 2 * x
        assert (out[1] is not None) == save
        if save:
            out[1][:] = x.sum(1)

    kernel = dlbridge.wrap(norm, f"optional::writes{TYPE}", abi="python:numpy")
    np.testing.assert_array_equal(kernel(X, save=True)[1], TOTAL)
    assert kernel(X)[1] is None


def test_a_result_that_is_missing_or_not_asked_for() -> None:
    """What nobody asked for is dropped; what is missing is an error that says so."""

    def always(x, *, save):
        return 2 * x, x.sum(1)

    def never(x, *, save):
        return 2 * x, None

    kernel = dlbridge.wrap(always, f"optional::always{TYPE}", abi="python:numpy")
    assert kernel(X)[1] is None
    kernel = dlbridge.wrap(never, f"optional::never{TYPE}", abi="python:numpy")
    assert kernel(X)[1] is None
    with pytest.raises(UnsupportedTypeError, match="optional::never"):
        kernel(X, save=True)


def test_the_first_call_and_later_ones_agree(kernels) -> None:
    """Later ones find the kernel that serves them by the arguments as they came."""
    schema = (
        "optional::more(x: f32[n], save: bool, bias: f32[n]? = None)"
        " -> (y: f32[n], low: f32[]? if save, high: f32[n]? if bias)"
    )

    def function(x, bias, save):
        low = np.asarray(x.min()) if save else None
        return 2 * x, low, None if bias is None else x + bias

    kernel = dlbridge.wrap(function, schema, abi="python:numpy")
    x = np.array([3, 1, 2], "float32")
    for _ in range(3):
        for call, there in (
            (lambda: kernel(x, True), (True, False)),
            (lambda: kernel(x, save=False), (False, False)),
            (lambda: kernel(x, False, x), (False, True)),
            (lambda: kernel.numpy(save=True, bias=x, x=x), (True, True)),
            (lambda: kernel(x, np.False_, bias=None), (False, False)),
        ):
            y, low, high = call()
            np.testing.assert_array_equal(y, 2 * x)
            assert (low is not None, high is not None) == there
        with pytest.raises(UnsupportedTypeError, match="'save': expected bool, got nothing"):
            kernel(x)
        with pytest.raises(UnsupportedTypeError, match="'save': expected bool, got 1"):
            kernel(x, 1)
        with pytest.raises(UnsupportedTypeError, match="'x': expected f32"):
            kernel(x.astype("f8"), True)
        with pytest.raises(UnsupportedTypeError, match="'more': not expected"):
            kernel(x, True, more=1)


def test_several_results_are_decided_one_by_one() -> None:
    def function(x, *, low, high):
        return x.min() if low else None, x.copy(), x.max() if high else None

    kernel = dlbridge.wrap(
        lambda x, *, low, high: tuple(
            None if each is None else np.asarray(each) for each in function(x, low=low, high=high)
        ),
        "optional::ends(x: f32[n], *, low: bool, high: bool)"
        " -> (low_end: f32[]? if low, y: f32[n], high_end: f32[]? if high)",
        abi="python:numpy",
    )
    x = np.array([3, 1, 2], "float32")
    for low in (False, True):
        for high in (False, True):
            found = kernel(x, low=low, high=high)
            assert [each is None for each in found] == [not low, False, not high]
            assert low is False or found[0] == 1
            assert high is False or found[2] == 3


def test_kernels_are_pickled_whole(kernels) -> None:
    assert pickle.loads(pickle.dumps(kernels.function)) is kernels.function


def test_debug_mode_looks_at_the_result_that_is_there() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    source = SOURCE.replace("total[i] = sum;", "total[i + 1] = sum;")
    kernel = dlbridge.compile_c(source, "norm", f"optional::beside{TYPE}")
    with dlbridge.debug_kernels():
        assert kernel(X)[1] is None
        with pytest.raises(dlbridge.errors.KernelDefectError, match="result 'total'"):
            kernel(X, save=True)


# ---- schemas -------------------------------------------------------------------------------------


def test_the_text_says_what_decides() -> None:
    schema = Schema.parse(f"optional::norm{TYPE}")
    assert Schema.parse(str(schema)) == schema
    assert str(schema).endswith("total: f32[n]? if save)")
    assert "total: float32 tensor of shape [n]; or None, as save says" in schema.help("", "strided")
    assert schema.torch_schema().endswith("-> (Tensor, Tensor[])")
    assert "grad_total: f32[n]?" in str(schema.vjp())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(x: f32[n]) -> (y: f32[n], z: f32[n]?)", "expected 'if' and the argument that decides"),
        ("(x: f32[n]) -> (y: f32[n], z: f32[n]? if)", "an argument's name"),
        ("(x: f32[n]) -> (y: f32[n], z: f32[n]? if save)", "must be a bool.*it is no argument"),
        ("(x: f32[n]) -> (y: f32[n], z: f32[n]? if x)", r"may be None; it is x: f32\[n\]"),
        ("(x: f32[n], a: int) -> (y: f32[n], z: f32[n]? if a)", "it is a: int"),
        ("(x: f32[n], a: bool?) -> (y: f32[n], z: f32[n]? if a)", r"it is a: bool\?"),
        ("(x: f32[n], a: bool) -> f32[n]? if a", "one result must always be there"),
        (
            "(xs: f32[n][k], a: bool) -> (y: f32[n], z: f32[n][k]? if a)",
            "a list of tensors cannot be optional",
        ),
        ("(x: f32[n], a: bool) -> (y: f32[n], z: f32[k<=n]? if a)", "cannot have 'k<=n'"),
        ("(x: f32[n], a: bool) -> (y: f32[n], z: f32[m]? if a)", "'m' of 'z' is not determined"),
    ],
)
def test_mistakes_are_refused(text: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        Schema.parse(f"optional::wrong{text}")


def test_what_cannot_leave_a_result_out_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'total' is an optional result, which abi='pointers'"):
        dlbridge.compile_c(SOURCE, "norm", f"optional::refused{TYPE}", abi="pointers")


def test_stubs_say_that_it_may_be_none(kernels) -> None:
    from dlbridge.frameworks import stubs

    text = "\n".join(stubs._calls(kernels.function.schema, ["numpy"]))
    assert "-> tuple[" in text
    assert "| None]" in text


# ---- frameworks ----------------------------------------------------------------------------------


@KINDS
def test_torch(kernels, kind: str, framework) -> None:
    torch = framework("torch")
    kernel = getattr(kernels, kind)
    x = torch.tensor(X, requires_grad=True)

    def loss(y, total):
        return y.sum() + (0 if total is None else 3 * total.sum())

    for save, right in ((False, 2.0), (True, 5.0)):
        found = kernel(x, save=save)
        assert (found[1] is None) == (not save)
        (grad,) = torch.autograd.grad(loss(*found), x)
        assert torch.equal(grad, torch.full((2, 3), right))
        inner = torch.func.grad(lambda x: loss(*kernel.torch(x, save=save)))  # noqa: B023
        assert torch.equal(inner(x.detach()), grad)
        batch = torch.vmap(lambda x: kernel.torch(x[None], save=save)[0])(x.detach())  # noqa: B023
        assert torch.equal(batch[:, 0], 2 * x.detach())
        rows = torch.vmap(inner)(x.detach()[None])
        assert torch.equal(rows[0], grad)
    found = torch.ops.optional.__getattr__(kind)(x.detach(), save=True)
    assert torch.equal(found[1][0], torch.tensor(TOTAL))
    assert torch.ops.optional.__getattr__(kind)(x.detach())[1] == []
    out = torch.empty(2, 3), torch.empty(2)
    assert kernel(x.detach(), save=True, out=out)[1] is out[1]
    assert torch.equal(out[1], torch.tensor(TOTAL))


@KINDS
def test_torch_compile_and_export(kernels, kind: str, framework) -> None:
    torch = framework("torch")
    kernel = getattr(kernels, kind)
    x = torch.tensor(X, requires_grad=True)
    function = torch.compile(
        lambda x, save: kernel(x, save=save), fullgraph=True, backend="aot_eager"
    )
    for save in (True, False):
        y, total = function(x, save)
        assert (total is None) == (not save)
        total = torch.zeros(2) if total is None else total
        (grad,) = torch.autograd.grad(y.sum() + 3 * total.sum(), x)
        assert torch.equal(grad, torch.full((2, 3), 5.0 if save else 2.0))

    class Module(torch.nn.Module):
        def forward(self, x):
            y, total = kernel(x, save=True)
            return y + total[:, None], kernel(x)[1] is None

    program = torch.export.export(Module(), (x.detach(),)).module()
    torch.testing.assert_close(program(x.detach())[0], Module()(x)[0])

    traced = torch.fx.symbolic_trace(lambda x: kernel(x, save=True))
    assert torch.equal(traced(x.detach())[1], torch.tensor(TOTAL))


def test_torch_compile_writes_into_out(kernels, framework) -> None:
    torch = framework("torch")
    x = torch.tensor(X)

    def program(x, y, total):
        kernels.dltensors(x, save=True, out=(y, total))
        return kernels.dltensors(x, out=(y, None))[1], total + 1

    function = torch.compile(program, fullgraph=True, backend="aot_eager")
    nothing, more = function(x, torch.empty(2, 3), torch.empty(2))
    assert nothing is None
    assert torch.equal(more, torch.tensor(TOTAL) + 1)


def test_a_function_of_torch(framework) -> None:
    torch = framework("torch")

    def norm(x, save):
        return 2 * x, x.sum(1) if save else None

    kernel = dlbridge.wrap(norm, f"optional::torchs{TYPE}", abi="python:torch")
    x = torch.tensor(X, requires_grad=True)
    compiled = torch.compile(
        lambda x, save: kernel(x, save=save), fullgraph=True, backend="aot_eager"
    )
    for call in (lambda x, save: kernel(x, save=save), compiled):
        assert call(x, False)[1] is None
        (grad,) = torch.autograd.grad(call(x, True)[1].sum(), x)
        assert torch.equal(grad, torch.ones(2, 3))
    y, total = torch.empty(2, 3), torch.empty(2)

    def write(x, y, total):
        return kernel(x, save=True, out=(y, total))[0], kernel(x, out=(y, None))[1]

    for call in (write, torch.compile(write, fullgraph=True, backend="aot_eager")):
        assert call(x.detach(), y, total.zero_())[1] is None
        assert torch.equal(total, torch.tensor(TOTAL))
    np.testing.assert_array_equal(kernel(X, save=True)[1], TOTAL)


@KINDS
def test_jax(kernels, kind: str, framework) -> None:
    jax = framework("jax")
    kernel = getattr(kernels, kind)
    x = jax.numpy.asarray(X)

    def loss(x, save):
        y, total = kernel.jax(x, save=save)
        return y.sum() + (0 if total is None else 3 * total.sum())

    for save, right in ((False, 2.0), (True, 5.0)):
        for change in (lambda f: f, lambda f: jax.jit(f, static_argnums=1)):
            np.testing.assert_array_equal(change(jax.grad(loss))(x, save), np.full((2, 3), right))
        rows = jax.vmap(lambda x: kernel.jax(x[None], save=save))(x)  # noqa: B023
        assert (rows[1] is None) == (not save)
        np.testing.assert_array_equal(rows[0][:, 0], 2 * X)
    with pytest.raises(UnsupportedTypeError, match=r"'save': expected bool, .*static_argnames"):
        jax.jit(loss)(x, True)


def test_tensorflow(kernels, framework) -> None:
    tf = framework("tensorflow")
    kernel, x = kernels.dltensors, tf.constant(X)
    for save, right in ((False, 2.0), (True, 5.0)):

        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, total = kernel(x, save=save)  # noqa: B023
                loss = tf.reduce_sum(y) + (0.0 if total is None else 3 * tf.reduce_sum(total))
            return tape.gradient(loss, x)

        for call in (run, tf.function(run)):
            np.testing.assert_array_equal(call(x), np.full((2, 3), right))
    with pytest.raises(UnsupportedTypeError, match="'save': expected bool"):
        tf.function(lambda x, save: kernel(x, save=save)[0])(x, tf.constant(True))


def test_a_kernel_as_the_vjp_gets_none(framework) -> None:
    torch = framework("torch")

    def back(grad_y, grad_total):
        return 2 * grad_y + (0 if grad_total is None else grad_total[:, None])

    rule = dlbridge.wrap(
        back, "optional::back(grad_y: f32[n, m], grad_total: f32[n]?) -> f32[n, m]",
        abi="python:numpy",
    )  # fmt: skip
    kernel = dlbridge.wrap(reference, f"optional::ruled{TYPE}", abi="python:numpy", vjp=rule)
    x = torch.tensor(X, requires_grad=True)
    (grad,) = torch.autograd.grad(kernel(x)[0].sum(), x)
    assert torch.equal(grad, torch.full((2, 3), 2.0))
    (grad,) = torch.autograd.grad(sum(each.sum() for each in kernel(x, save=True)), x)
    assert torch.equal(grad, torch.full((2, 3), 3.0))


def test_a_kernel_as_the_vjp_must_take_none() -> None:
    rule = dlbridge.wrap(
        lambda grad_y, grad_total: 2 * grad_y,
        "optional::strict(grad_y: f32[n, m], grad_total: f32[n]) -> f32[n, m]", abi="python:numpy",
    )  # fmt: skip
    with pytest.raises(UnsupportedTypeError, match=r"save says so: its type must be f32\[n\]\?"):
        dlbridge.wrap(reference, f"optional::needs{TYPE}", abi="python:numpy", vjp=rule)


def test_a_vjp_may_leave_out_the_gradient_of_what_is_missing(framework) -> None:
    torch, jax = framework("torch"), framework("jax")
    rule = dlbridge.wrap(
        lambda grad, bias: (2 * grad, None if bias is None else 3 * grad),
        "optional::shift_vjp(grad: f32[n], bias: f32[n]?)"
        " -> (grad_x: f32[n], grad_bias: f32[n]? if bias)",
        abi="python:numpy",
    )
    kernel = dlbridge.wrap(
        lambda x, bias: 2 * x if bias is None else 2 * x + 3 * bias,
        "optional::shift(x: f32[n], bias: f32[n]? = None) -> f32[n]", abi="python:numpy", vjp=rule,
    )  # fmt: skip
    x = torch.ones(3, requires_grad=True)
    bias = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(kernel(x).sum(), x)[0].tolist() == [2, 2, 2]
    found = torch.autograd.grad(kernel(x, bias).sum(), (x, bias))
    assert [each.tolist() for each in found] == [[2, 2, 2], [3, 3, 3]]
    compiled = torch.compile(kernel, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, bias).sum(), (x, bias))
    assert [each.tolist() for each in found] == [[2, 2, 2], [3, 3, 3]]
    array = jax.numpy.ones(3)
    run = jax.jit(jax.grad(lambda x, bias: kernel.jax(x, bias).sum(), argnums=(0, 1)))
    assert [each.tolist() for each in run(array, array)] == [[2, 2, 2], [3, 3, 3]]
    assert jax.grad(lambda x: kernel.jax(x).sum())(array).tolist() == [2, 2, 2]


def test_derived_derivatives_and_forward_mode(framework) -> None:
    torch = framework("torch")

    def norm(x, save):
        return 2 * x, x.sum(1) if save else None

    derived = dlbridge.wrap(
        norm, f"optional::derived{TYPE}", abi="python:torch", vjp="torch", jvp="torch"
    )
    forward = dlbridge.wrap(
        reference, f"optional::forward{TYPE}", abi="python:numpy", vjp=gradient,
        jvp=lambda tangent_x, save: (2 * tangent_x, tangent_x.sum(1) if save else None),
    )  # fmt: skip
    x, moved = torch.tensor(X), torch.ones(2, 3)
    for kernel in (derived, forward):
        for save in (True, False):
            _, found = torch.func.jvp(
                lambda x: sum(e.sum() for e in kernel.torch(x, save=save) if e is not None),  # noqa: B023
                (x,), (moved,),
            )  # fmt: skip
            assert found == (18 if save else 12)


def test_autocast_and_lists_go_together(framework) -> None:
    torch = framework("torch")

    def scale(xs, save):
        return [2 * x for x in xs], torch.stack([x.sum() for x in xs]) if save else None

    kernel = dlbridge.wrap(
        scale, "optional::scale(xs: T=f16|f32[n][k], save: bool = False)"
        " -> (ys: T[n][k], total: T[k]? if save)",
        abi="python:torch", autocast="float16", vjp=lambda grad_ys: [2 * each for each in grad_ys],
    )  # fmt: skip
    xs = [torch.ones(3, requires_grad=True), torch.ones(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ys, total = kernel(xs, True)
        assert kernel(xs)[1] is None
        assert kernel(xs[:1], save=True)[1].shape == (1,)
    assert [each.dtype for each in (*ys, total)] == [torch.float16] * 3
    (grad,) = torch.autograd.grad(ys[0].float().sum(), xs[0])
    assert torch.equal(grad, torch.full((3,), 2.0))


def test_eight_threads_make_both_kernels_at_once() -> None:
    kernel = dlbridge.wrap(reference, f"optional::threads{TYPE}", abi="python:numpy")
    start = Barrier(8)

    def work(number):
        start.wait()
        return [kernel(X, save=bool(number % 2))[1] is None for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(work, range(8))):
            assert found == [number % 2 == 0] * 20


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_check_kernel_tries_each_choice(kernels, name: str, framework) -> None:
    framework(name)
    for given in ({}, {"save": True}):
        report = check_kernel(
            kernels.dltensors, reference, frameworks=[name], scalars=given, skip=["threads"]
        )
        assert {row.check: row.status for row in report.rows}["optional"] == "passed"


def test_check_kernel_finds_a_choice_that_is_wrong() -> None:
    def wrong(x, *, save):
        return (3 if save else 2) * x, x.sum(-1) if save else None

    kernel = dlbridge.wrap(wrong, f"optional::wrong_choice{TYPE}", abi="python:numpy")
    with pytest.raises(AssertionError, match=r"numpy.optional: failed: with save=True, y\["):
        check_kernel(kernel, reference, frameworks=["numpy"])


def test_graphs_and_models_refuse_it(kernels) -> None:
    import dlbridge.graph as tf

    with tf.Graph().as_default(), pytest.raises(ArgumentError, match="optional result"):
        tf.call(kernels.function, [tf.constant(X)])
    onnxruntime = pytest.importorskip("onnxruntime")
    with pytest.raises(ArgumentError, match="optional result"):
        dlbridge.register_onnxruntime(onnxruntime.SessionOptions(), kernels.function)
