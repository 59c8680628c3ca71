"""Kernels in TensorFlow's functions: shapes, derivatives, batches, models, saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, KernelError

# ---- shapes ------------------------------------------------------------------------------------


def test_shapes_are_known_as_far_as_the_schema_tells(tf: Any, samples: Any) -> None:
    """Static, dynamic, of unknown rank; what runs agrees with what was promised."""
    same = samples("same")
    cases = [
        (([2, 3], [3, 5]), [2, 10]),
        (([None, 3], [3, 5]), [None, 10]),
        (([2, 3], [3, None]), [2, None]),
        ((None, [3, 5]), [None, 10]),
        ((None, None), [None, None]),
    ]
    for specs, expected in cases:
        signature = [tf.TensorSpec(spec) for spec in specs]
        function = tf.function(lambda x, y: same(x, y), input_signature=signature)
        assert function.get_concrete_function().output_shapes.as_list() == expected
        assert function(tf.ones((2, 3)), tf.ones((3, 5))).shape == (2, 10)


def test_an_unknown_rank_stays_unknown_in_a_pack(tf: Any, samples: Any) -> None:
    """Unless another argument of the pack knows it."""
    axpy = samples("axpy")
    unknown = tf.TensorSpec(None)
    function = tf.function(lambda x, y: axpy(x, y), input_signature=[unknown, unknown])
    assert function.get_concrete_function().output_shapes.rank is None
    assert function(tf.ones((2, 3)), tf.ones((2, 3))).shape == (2, 3)
    known = tf.TensorSpec([None, 3])
    function = tf.function(lambda x, y: axpy(x, y), input_signature=[unknown, known])
    assert function.get_concrete_function().output_shapes.as_list() == [None, 3]


def test_a_mismatch_that_only_the_run_shows_has_the_same_text(tf: Any, samples: Any) -> None:
    """As TensorFlow's InvalidArgumentError; a kernel's own failure is an InternalError."""
    axpy, fail = samples("axpy"), samples("fail")
    unknown = tf.TensorSpec(None)
    function = tf.function(lambda x, y: axpy(x, y), input_signature=[unknown, unknown])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(tf.ones((2, 3)), tf.ones((3, 3)))
    expected = "tf_test::axpy: argument 'y': expected f32[...=(2, 3)], got f32[3, 3]"
    assert expected in str(caught.value)
    with pytest.raises(tf.errors.InternalError, match="tf_test::fail: cannot do 2 tensors"):
        tf.function(lambda x: fail(x))(tf.ones(2))


def test_arguments_that_are_written_keep_their_old_value_elsewhere(tf: Any, samples: Any) -> None:
    """In a graph, memory that nobody else needs is changed in place; other memory is not."""
    twice = samples("twice")

    @tf.function
    def chain(x: Any) -> Any:
        once = twice(x)
        return x, once, twice(twice(once + 1))

    before, once, last = chain(tf.constant([1.0, 2.0]))
    assert before.numpy().tolist() == [1, 2]
    assert once.numpy().tolist() == [2, 4]
    assert last.numpy().tolist() == [12, 20]


def test_a_symbolic_scalar_is_an_argument_of_the_op(tf: Any, samples: Any) -> None:
    """A learning rate that the graph computes, say."""
    axpy = samples("axpy")
    function = tf.function(lambda x, alpha: axpy.tensorflow(x, x, alpha=alpha))
    assert function(tf.ones(2), tf.constant(4.0)).numpy().tolist() == [5, 5]


def test_xla_is_refused_while_it_is_traced(tf: Any, samples: Any) -> None:
    """TensorFlow's own text would speak of devices and op kernels."""
    axpy = samples("axpy")
    with pytest.raises(KernelError, match="jit_compile=True is not supported"):
        tf.function(lambda x: axpy(x, x), jit_compile=True)(tf.ones(2))


# ---- derivatives -------------------------------------------------------------------------------


def gradients(tf: Any, function: Any, *values: Any) -> list[Any]:
    """Return the gradients of the sum of what `function` returns, as lists."""
    with tf.GradientTape() as tape:
        for value in values:
            tape.watch(value)
        result = function(*values)
    return [each.numpy().tolist() for each in tape.gradient(result, values)]


def rules(samples: Any) -> list[Any]:
    """Return a kernel and a Python function as the vjp of axpy."""
    return [samples("axpy_vjp"), lambda grad, alpha: (alpha * grad, grad)]


@pytest.mark.parametrize("number", [0, 1])
def test_gradients_pass_through_the_vjp(tf: Any, samples: Any, number: int) -> None:
    """Eager, around a function, inside of a function; by a kernel and by a Python function."""
    axpy = samples("axpy", vjp=rules(samples)[number])
    x, y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
    expected = [[6, 8], [3, 4]]

    def loss(x: Any, y: Any) -> Any:
        return tf.reduce_sum(axpy(x, y, alpha=2.0) * tf.stop_gradient(y))

    inside = tf.function(lambda x, y: tf.gradients(loss(x, y), [x, y]))

    @tf.function
    def taped(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            result = loss(x, y)
        return tape.gradient(result, [x, y])

    assert gradients(tf, loss, x, y) == expected
    assert gradients(tf, tf.function(loss), x, y) == expected
    assert [each.numpy().tolist() for each in taped(x, y)] == expected
    assert [each.numpy().tolist() for each in inside(x, y)] == expected


def test_second_derivatives_pass_where_the_vjp_has_its_own(tf: Any, samples: Any) -> None:
    """And raise where it has none, naming the kernel that lacks it."""

    def rule(x: Any, grad: Any) -> Any:
        return 3 * x * x * grad

    cube = dlbridge.wrap(
        lambda x: x**3, "tf_test::cube(x: f64[n]) -> f64[n]", abi="python:numpy", vjp=rule
    )
    x = tf.constant([1.0, 2.0], tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            result = cube(x)
        first = inner.gradient(result, x)
    assert first.numpy().tolist() == [3, 12]
    assert outer.gradient(first, x).numpy().tolist() == [6, 12]

    axpy = samples("axpy", vjp=samples("axpy_vjp"))
    z = tf.ones(2)
    with tf.GradientTape() as outer, tf.GradientTape() as inner:
        outer.watch(z)
        inner.watch(z)
        result = axpy(z, z) ** 2
        first = inner.gradient(result, z)
    with pytest.raises(KernelError, match="tf_test::axpy_vjp"):
        outer.gradient(first, z)


@pytest.mark.parametrize("traced", [False, True])
def test_without_a_vjp_the_backward_pass_raises(tf: Any, samples: Any, traced: bool) -> None:
    """A gradient is never silently None."""
    axpy = samples("axpy")
    function = tf.function(lambda x: axpy(x, x)) if traced else axpy.tensorflow
    given = [tf.ones(2)] if traced else [tf.ones(2), tf.ones(2)]
    with pytest.raises(KernelError, match=r"tf_test::axpy: .*vjp="):
        gradients(tf, function, *given)


def test_a_symbolic_scalar_is_not_differentiated_silently(tf: Any, samples: Any) -> None:
    """Its gradient would be lost, unless the caller says that it may."""
    axpy = samples("axpy", vjp=lambda grad, alpha: (alpha * grad, grad))

    def loss(x: Any, stop: bool) -> Any:
        alpha = tf.reduce_sum(x)
        return axpy.tensorflow(x, x, alpha=tf.stop_gradient(alpha) if stop else alpha)

    x = tf.constant([1.0, 2.0])
    with pytest.raises(ExchangeError, match="whose gradient would be lost") as caught:
        gradients(tf, tf.function(lambda x: loss(x, False)), x)
    assert caught.value.reason == "requires_grad"
    assert gradients(tf, tf.function(lambda x: loss(x, True)), x) == [[4, 4]]


def test_forward_derivatives_use_the_jvp_or_transpose_the_vjp(tf: Any, samples: Any) -> None:
    """Without either, they raise."""

    def push(tangent_x: Any, tangent_y: Any, alpha: float) -> Any:
        return alpha * tangent_x + tangent_y

    options: list[dict[str, Any]] = [
        {"jvp": push},
        {"vjp": lambda grad, alpha: (alpha * grad, grad)},
    ]
    x, tangent = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])
    for given in options:
        axpy = samples("axpy", **given)
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            result = axpy(x, x, alpha=2.0)
        assert accumulator.jvp(result).numpy().tolist() == [3, 30]
    axpy = samples("axpy")
    with tf.autodiff.ForwardAccumulator(x, tangent), pytest.raises(KernelError, match="derivative"):
        axpy(x, x)


@pytest.mark.full
def test_variables_of_a_layer_are_trained(tf: Any, samples: Any) -> None:
    """The tape sees through the variable and the op, inside of Keras's own function."""
    keras = pytest.importorskip("keras")
    axpy = samples("axpy", vjp=lambda grad, alpha: (alpha * grad, grad))

    class Shift(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.shift = self.add_weight(shape=(3,), initializer="zeros")

        def call(self, x: Any) -> Any:
            return axpy.tensorflow(x, tf.ones_like(x) * self.shift, alpha=0.0)

    model = keras.Sequential([Shift()])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    x = np.ones((8, 3), "f4")
    model.fit(x, 2 * x, epochs=30, batch_size=8, verbose=0)
    assert np.allclose(model.layers[0].shift.numpy(), 2, atol=1e-3)


def test_a_call_whose_results_nobody_needs_is_left_out(tf: Any, samples: Any) -> None:
    """As any op that has no effect; a kernel without results is run for what it does."""
    kernels = samples("axpy"), samples("note")
    for kernel, is_stateful in zip(kernels, (False, True), strict=True):
        arguments = [tf.TensorSpec([3])] * len(kernel.schema.tensors)
        traced = tf.function(kernel.tensorflow).get_concrete_function(*arguments)
        made = [each for each in traced.graph.get_operations() if "Dlbridge" in each.type]
        assert [each.op_def.is_stateful for each in made] == [is_stateful]


# ---- batches -----------------------------------------------------------------------------------


def test_a_batch_is_computed_as_the_kernel_says(tf: Any, samples: Any) -> None:
    """One by one, in one call, or by the author's rule: the same values."""
    sizes: list[Any] = []

    def rule(size: Any, marks: tuple[bool, ...], x: Any, y: Any, *, alpha: float) -> Any:
        sizes.append((size, marks, tuple(x.shape)))
        return alpha * x + y

    x, y = tf.reshape(tf.range(12.0), (4, 3)), tf.constant([10.0, 20.0, 30.0])
    expected = (2 * x + y).numpy().tolist()
    for batch in ("sequential", "broadcast", rule):
        axpy = samples("axpy", batch=batch)

        def one(row: Any, axpy: Any = axpy) -> Any:
            return axpy(row, y, alpha=2.0)

        found = tf.vectorized_map(one, x, fallback_to_while_loop=False)
        assert found.numpy().tolist() == expected
    assert sizes == [(4, (True, False), (4, 3))]


def products(samples: Any) -> Any:
    """Return axpy with TensorFlow's own functions as derivatives, which have derivatives too."""
    return samples(
        "axpy",
        vjp=lambda x, grad, alpha: (alpha * grad, grad),
        jvp=lambda tangent_x, tangent_y, alpha: alpha * tangent_x + tangent_y,
    )


ELEMENTS: dict[str, Any] = {
    "both vary": lambda axpy, x, y: axpy(x, x + y[0], alpha=2.0),
    "one is shared": lambda axpy, x, y: axpy(x, y, alpha=2.0),
    "the other is shared": lambda axpy, x, y: axpy(y, x, alpha=-1.0),
    "twice in a row": lambda axpy, x, y: axpy(axpy(x, y, alpha=2.0), x * y, alpha=3.0),
}


@pytest.mark.full
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_batch_and_its_derivatives_equal_those_of_a_loop(
    tf: Any, samples: Any, element: str, size: int
) -> None:
    """Values, gradients, jacobians and tangents, of one dimension of a batch and of two."""
    axpy = products(samples)
    x = tf.reshape(tf.range(6.0 * size) - 7, (size, 2, 3)) / 4
    y = tf.constant([1.0, -2.0, 0.5])

    def one(row: Any) -> Any:
        return ELEMENTS[element](axpy, row, y)

    def batch(rows: Any) -> Any:
        return tf.vectorized_map(one, rows, fallback_to_while_loop=False)

    def loop(rows: Any) -> Any:
        made = [one(row) for row in tf.unstack(rows)]
        return tf.stack(made) if made else tf.zeros_like(rows)

    ways = {
        "batch": (batch, x[:, 0]),
        "loop": (loop, x[:, 0]),
        "batch of batches": (lambda z: tf.vectorized_map(batch, z, False), x),
        "loops": (lambda z: tf.stack([loop(each) for each in z]) if size else z, x),
    }
    found = {name: derive(tf, way, given, y) for name, (way, given) in ways.items()}
    for name, other in (("batch", "loop"), ("batch of batches", "loops")):
        for ours, theirs in zip(found[name], found[other], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def derive(tf: Any, way: Any, x: Any, y: Any) -> list[Any]:
    """Return the values of a function, its gradients, tangents, and its derivative by `y`."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        z = way(x)
        total = tf.reduce_sum(z * z)
    with tf.autodiff.ForwardAccumulator(x, x + 1) as accumulator:
        tangent = accumulator.jvp(way(x))
    none = tf.UnconnectedGradients.ZERO
    found = [z, *tape.gradient(total, [x, y], unconnected_gradients=none), tangent]
    return [tf.zeros_like(x) if each is None else tf.convert_to_tensor(each) for each in found]


def test_a_jacobian_of_a_batch_calls_the_kernel_in_one_op(tf: Any, samples: Any) -> None:
    axpy = samples("axpy", vjp=samples("axpy_vjp"))
    x, y = tf.reshape(tf.range(12.0), (4, 3)), tf.ones(3)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        z = tf.vectorized_map(lambda row: axpy(row, y, alpha=2.0), x, False)
    jacobian = tape.batch_jacobian(z, x, experimental_use_pfor=True)
    assert jacobian.numpy().tolist() == (2 * np.stack([np.eye(3)] * 4)).tolist()
    assert tape.jacobian(z, y).numpy().tolist() == np.stack([np.eye(3)] * 4).tolist()


def test_each_call_of_a_batch_writes_memory_of_its_own(tf: Any, samples: Any) -> None:
    """Also where the argument is the same for all; the argument itself keeps its value."""
    twice, halves = samples("twice"), samples("halves")
    x, y = tf.reshape(tf.range(12.0), (4, 3)), tf.constant([1.0, 2.0, 3.0])
    shared, own = tf.vectorized_map(lambda row: (twice(y), twice(row)), x, False)
    places, doubled = tf.vectorized_map(lambda row: halves(y + 0 * row), x, False)
    assert shared.numpy().tolist() == [[2.0, 4.0, 6.0]] * 4
    assert own.numpy().tolist() == (2 * x).numpy().tolist()
    assert np.diff(places.numpy()).tolist() == [12] * 3
    assert doubled.numpy().tolist() == shared.numpy().tolist()
    assert y.numpy().tolist() == [1.0, 2.0, 3.0]


def test_a_batch_of_unknown_size_is_one_op(tf: Any, samples: Any) -> None:
    axpy, fill = samples("axpy"), samples("fill")
    batches: list[Any] = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])  # type: ignore[untyped-decorator,unused-ignore]
    def run(rows: Any) -> Any:
        made = tf.vectorized_map(lambda row: fill(axpy(row, row, alpha=1.0)), rows, False)
        batches.append(made.shape.as_list())
        return made

    for size in (0, 1, 4):
        assert run(tf.ones((size, 3))).numpy().tolist() == [[2.0] * 3] * size
    assert batches == [[None, 3]]
    operations = run.get_concrete_function().graph.get_operations()
    calls = [each for each in operations if each.type == "DlbridgeCall"]
    assert [each.get_attr("batched") for each in calls] == [b"", b"", b"11", b"10"]


def test_an_error_in_a_batch_is_that_of_the_call(tf: Any, samples: Any) -> None:
    fail, same = samples("fail"), samples("same")
    with pytest.raises(Exception, match="cannot do 2 tensors"):
        tf.vectorized_map(fail, tf.ones((4, 3)), False)
    with pytest.raises(
        ArgumentError, match=r"argument 'y': expected number=f32\[k=3, n\], got f32"
    ):
        tf.vectorized_map(lambda x: same(x, tf.ones((2, 4))), tf.ones((4, 2, 3)), False)


def test_a_batch_calls_kernels_with_every_check(tf: Any, samples: Any) -> None:
    """Rows of 12 bytes are copied for a kernel that wants them aligned."""
    where = samples("where", align=64)
    found = tf.vectorized_map(where, tf.ones((6, 3)), False).numpy()
    assert (found % 64).tolist() == [0] * 6


def test_a_number_that_differs_from_call_to_call_is_looped_over(tf: Any, samples: Any) -> None:
    axpy = samples("axpy")
    x, scales = tf.ones((4, 3)), tf.range(4.0)
    found = tf.vectorized_map(lambda pair: axpy(pair[0], pair[0], alpha=pair[1]), (x, scales))
    assert found.numpy().tolist() == [[each + 1.0] * 3 for each in range(4)]


def test_a_batch_is_saved_with_its_model(tf: Any, samples: Any, tmp_path: Any) -> None:
    axpy = products(samples)

    class Model(tf.Module):  # type: ignore[misc,unused-ignore]
        @tf.function(input_signature=[tf.TensorSpec([None, 3])])  # type: ignore[untyped-decorator,unused-ignore]
        def run(self, rows: Any) -> Any:
            return tf.vectorized_map(lambda row: axpy(row, row, alpha=2.0), rows, False)

    tf.saved_model.save(Model(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    x = tf.reshape(tf.range(6.0), (2, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        z = loaded.run(x)
    assert z.numpy().tolist() == (3 * x).numpy().tolist()
    assert tf.convert_to_tensor(tape.gradient(z, x)).numpy().tolist() == [[3.0] * 3] * 2


def test_a_batch_rule_that_returns_the_wrong_shape_is_told(tf: Any, samples: Any) -> None:
    """Else the wrong values would come out."""
    axpy = samples("axpy", batch=lambda size, marks, x, y, *, alpha: y)
    with pytest.raises(ArgumentError, match=r"batch= returned float32\(3,\) as result 0"):
        tf.vectorized_map(lambda row: axpy(row, tf.ones(3)), tf.ones((4, 3)))


def test_jacobians_batch_the_vjp(tf: Any, samples: Any) -> None:
    """TensorFlow vectorises the backward pass for them."""
    axpy = samples("axpy", vjp=samples("axpy_vjp", batch="broadcast"))
    x = tf.ones(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = axpy(x, x, alpha=3.0)
    assert tape.jacobian(result, x).numpy().tolist() == (4 * np.eye(3)).tolist()


# ---- saved models ------------------------------------------------------------------------------

LOAD = """
import sys
import tensorflow as tf
import dlbridge
from kernels.tensorflow_samples import SCHEMAS, SOURCE

def wrap(schema):
    rule = lambda grad, alpha: (alpha * grad, grad)
    return dlbridge.compile_c(SOURCE, "axpy", schema, vjp=rule)

schema = SCHEMAS["axpy"]
kernel = wrap({"same": schema, "other": schema.replace("axpy", "other"),
               "changed": schema.replace("f32", "f64")}[sys.argv[2]])
kernel.tensorflow
module = tf.saved_model.load(sys.argv[1])
x = tf.ones((2, 3))
try:
    module.call(x, x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = module.call(x, x)
    print(result.numpy().tolist(), tape.gradient(result, x).numpy().tolist())
except tf.errors.OpError as error:
    print(type(error).__name__, error.message)
"""


@pytest.fixture
def model(tf: Any, samples: Any, tmp_path: Path) -> Path:
    """Return the directory of a saved model that calls axpy."""
    axpy = samples("axpy", vjp=lambda grad, alpha: (alpha * grad, grad))
    spec = tf.TensorSpec([None, 3])

    class Module(tf.Module):  # type: ignore[misc, name-defined]
        @tf.function(input_signature=[spec, spec])
        def call(self, x: Any, y: Any) -> Any:
            return axpy(x, y, alpha=2.0)

    tf.saved_model.save(Module(), str(tmp_path / "model"))
    return tmp_path / "model"


@pytest.mark.preloaded("tensorflow")
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("same", f"{[[3.0] * 3] * 2} {[[3.0] * 3] * 2}"),
        ("other", "NotFoundError"),
        ("changed", "InvalidArgumentError"),
    ],
)
def test_a_saved_model_finds_its_kernels_by_name(
    model: Path, run_python: Any, which: str, expected: str
) -> None:
    """With their gradients; a process without the kernel, or with another schema, says so."""
    printed = run_python(LOAD, model, which, TF_CPP_MIN_LOG_LEVEL="3").check()
    assert expected in printed
    if which != "same":
        assert "tf_test::axpy" in printed
