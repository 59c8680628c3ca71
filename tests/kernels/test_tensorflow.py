"""Kernels in TensorFlow, eager: values, memory, scalars, refusals."""

from __future__ import annotations

import gc
import itertools
import math
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from kernels.tensorflow_samples import SOURCE

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError


def address(tensor: Any) -> int:
    """Return where the memory of an eager tensor is."""
    found: int = np.asarray(memoryview(tensor)).__array_interface__["data"][0]
    return found


# ---- values ------------------------------------------------------------------------------------


def test_tensors_of_tensorflow_come_back(tf: Any, samples: Any) -> None:
    """Both the kernel itself and its bound function; positions, keywords and defaults."""
    axpy = samples("axpy")
    x, y = tf.constant([1.0, 2.0]), tf.constant([10.0, 20.0])
    for function in (axpy, axpy.tensorflow):
        assert function(x, y).numpy().tolist() == [11, 22]
        result = function(y=y, x=x, alpha=3.0)
        assert isinstance(result, tf.Tensor)
        assert result.numpy().tolist() == [13, 26]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_every_rank_and_empty_tensors_work(tf: Any, samples: Any, shape: tuple[int, ...]) -> None:
    """TensorFlow gives empty tensors no memory."""
    x = tf.ones(shape)
    result = samples("axpy")(x, x)
    assert tuple(result.shape) == shape
    assert (result.numpy() == 2).all()


def test_inputs_are_used_where_they_lie(tf: Any, samples: Any) -> None:
    """Zero-copy is the point of the op."""
    x = tf.random.normal((64,))
    assert int(samples("where")(x)) == address(x)


DTYPES = (
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128", "bool"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float8_e5m2", "float8_e4m3fn"),
)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_arrive(tf: Any, samples: Any, name: str) -> None:
    """Every dtype whose elements are whole bytes; the result has the argument's."""
    dtype = getattr(tf, name, None) or getattr(tf.dtypes.experimental, name)
    x = tf.cast(tf.ones((2, 3)), dtype)
    assert int(samples("where")(x)) != 0
    if name not in ("bool", "float8_e5m2", "float8_e4m3fn"):
        result = samples("same")(x, tf.cast(tf.ones((3, 5)), dtype))
        assert (result.dtype, tuple(result.shape)) == (dtype, (2, 10))


def test_misaligned_memory_is_copied_for_a_kernel_that_needs_it(tf: Any, samples: Any) -> None:
    """Slices inside of TensorFlow may begin anywhere."""
    where = samples("where", "tf_test::aligned(x: any[...]) -> i64[]", align=64)
    row = tf.function(lambda x: [where(each) for each in tf.unstack(x)])
    for place in row(tf.ones((5, 3))):
        assert int(place) % 64 == 0


def test_variables_are_read(tf: Any, samples: Any) -> None:
    """A kernel gets the value, also that of Keras's variables."""
    keras = pytest.importorskip("keras")
    axpy = samples("axpy")
    y = tf.zeros(2)
    for variable in (tf.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])):
        assert axpy(variable, y).numpy().tolist() == [1, 2]
        assert axpy.tensorflow(variable, y).numpy().tolist() == [1, 2]


def test_written_arguments_are_returned_as_new_tensors(tf: Any, samples: Any) -> None:
    """TensorFlow's values never change; results come first, then what was written."""
    x = tf.constant([1.0, 2.0])
    assert samples("twice")(x).numpy().tolist() == [2, 4]
    place, doubled = samples("halves")(x)
    assert doubled.numpy().tolist() == [2, 4]
    assert int(place) == address(doubled) != address(x)
    assert x.numpy().tolist() == [1, 2]


def test_an_optional_tensor_may_be_left_out(tf: Any, samples: Any) -> None:
    """The op says which are there."""
    fill = samples("fill")
    x = tf.constant([1.0, 2.0])
    assert fill(x).numpy().tolist() == [1, 2]
    assert fill(x, None).numpy().tolist() == [1, 2]
    assert fill(x, tf.constant(5.0)).numpy().tolist() == [6, 7]


def test_a_kernel_without_tensors_works_by_its_bound_function(tf: Any, samples: Any) -> None:
    """No argument tells the framework then."""
    noted = samples("noted")
    assert noted.tensorflow().dtype == tf.int64
    with pytest.raises(UnsupportedTypeError):
        noted()


def test_a_kernel_without_results_is_run_and_gives_none(tf: Any, samples: Any) -> None:
    """TensorFlow leaves out ops that nobody needs; not these."""
    note, noted = samples("note"), samples("noted")
    x = tf.ones(2)
    before = int(noted.tensorflow())
    assert note(x) is None

    @tf.function
    def twice(x: Any) -> None:
        note(x)
        note(x)

    twice(x)
    assert int(noted.tensorflow()) == before + 3


# ---- scalars -----------------------------------------------------------------------------------


@pytest.mark.parametrize("traced", [False, True])
def test_scalars_arrive_exactly(tf: Any, samples: Any, traced: bool) -> None:
    """TensorFlow's own float attributes have 32 bits."""
    kinds = samples("kinds").tensorflow
    x = tf.ones(1)
    for given in ((0.1, -(2**53), True, "ü"), (math.inf, 7, False, None), (-0.0, 0, True, "a,:b")):

        def call(x: Any, given: Any = given) -> Any:
            return kinds(x, *given)

        result = (tf.function(call) if traced else call)(x).numpy().tolist()
        first = -1 if given[3] is None else given[3].encode()[0]
        signed = first - 256 if first > 127 else first
        assert result == [given[0], given[1], given[2], signed]
        assert math.copysign(1, result[0]) == math.copysign(1, given[0])
    assert math.isnan(kinds(x, math.nan, 0, False).numpy()[0])


def test_scalars_that_change_with_every_call_do_not_fill_caches(tf: Any, samples: Any) -> None:
    """TensorFlow keeps an eager op for each value of an attribute, for good."""
    axpy = samples("axpy", vjp=lambda grad, alpha: (alpha * grad, grad))
    x, y = tf.ones(2), tf.zeros(2)
    for step in range(200):
        assert axpy(x, y, alpha=step + 0.5).numpy().tolist() == [step + 0.5] * 2
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = axpy(x, y, alpha=1000.0)
    assert tape.gradient(result, x).numpy().tolist() == [1000, 1000]


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("y", "kind", "got"),
    [
        ([1.0, 2.0], ArgumentError, "f32[2] (tf.Tensor, cpu)"),
        (
            *([1, 2, 3], UnsupportedTypeError),
            'i32[3] (tf.Tensor, cpu); cast it with tf.cast(y, "float32")',
        ),
        (["a"], UnsupportedTypeError, "string[1] (tf.Tensor)"),
    ],
)
def test_wrong_tensors_are_refused_in_one_form(
    tf: Any, samples: Any, traced: bool, y: Any, kind: type[Exception], got: str
) -> None:
    """Eager and while a function is traced: our classes and texts, AutoGraph or not."""
    axpy = samples("axpy")

    def call(x: Any, y: Any) -> Any:
        return axpy(x, y)

    with pytest.raises(kind) as caught:
        (tf.function(call) if traced else call)(tf.ones(3), tf.constant(y))
    assert str(caught.value).startswith("tf_test::axpy: argument 'y': expected f32[...")
    assert str(caught.value).endswith(f"got {got}")


def test_sparse_and_ragged_tensors_are_refused_with_advice(tf: Any, samples: Any) -> None:
    """Each would lose something, or has no memory."""
    keras = pytest.importorskip("keras")
    axpy = samples("axpy")
    x = tf.ones(2)
    cases = {
        "to_tensor": tf.ragged.constant([[1.0], [1.0, 2.0]]),
        "tf.sparse.to_dense": tf.sparse.from_dense([1.0, 0.0]),
        "convert_to_tensor": tf.IndexedSlices(x, tf.constant([0, 1])),
        "Lambda": keras.Input((2,)),
        "": np.ones(2, "f4"),
    }
    for advice, value in cases.items():
        with pytest.raises(UnsupportedTypeError, match="argument 'y'") as caught:
            axpy.tensorflow(x, value)
        assert advice in str(caught.value)
    for value in (tf.TensorArray(tf.float32, 1), 1.0, [1.0, 2.0]):
        with pytest.raises(UnsupportedTypeError, match="argument 'y'"):
            axpy(x, value)


def test_out_is_refused(tf: Any, samples: Any) -> None:
    """There is nothing that could be written."""
    x = tf.ones(2)
    with pytest.raises(ExchangeError, match="immutable; leave out= away") as caught:
        samples("axpy")(x, x, out=x)
    assert caught.value.reason == "readonly"


def test_a_kernel_without_a_schema_is_refused(tf: Any, samples: Any) -> None:
    """It would have to write its last argument."""
    plain = dlbridge.compile_c(SOURCE, "axpy")
    with pytest.raises((ExchangeError, UnsupportedTypeError), match=r"immutable|schema"):
        plain(tf.ones(2), tf.ones(2), tf.ones(2))
    with pytest.raises(UnsupportedTypeError, match="with a schema"):
        _ = plain.tensorflow


def test_a_failing_kernel_says_why(tf: Any, samples: Any) -> None:
    """Its own text, in our class."""
    with pytest.raises(KernelError, match=r"tf_test::fail: cannot do 2 tensors"):
        samples("fail")(tf.ones(2))


# ---- Python kernels ----------------------------------------------------------------------------


def test_a_raising_python_kernel_raises_its_own_exception(tf: Any) -> None:
    """With its traceback: the same object, not TensorFlow's summary of it."""

    def forbid(x: Any) -> Any:
        raise LookupError("not here")

    kernel = dlbridge.wrap(forbid, "tf_test::forbid(x: f32[n]) -> f32[n]", abi="python:numpy")
    with pytest.raises(LookupError, match="not here") as caught:
        kernel(tf.ones(2))
    assert "forbid" in [entry.name for entry in caught.traceback]
    with pytest.raises(tf.errors.UnknownError, match="LookupError: not here"):
        tf.function(kernel.tensorflow)(tf.ones(2))


def test_python_kernels_run_on_the_threads_of_tensorflow(tf: Any) -> None:
    """Eager, in functions and in pipelines at once, the GIL notwithstanding."""
    kernel = dlbridge.wrap(
        lambda x: x * 2, "tf_test::double(x: f32[n]) -> f32[n]", abi="python:numpy"
    )
    function = tf.function(lambda x: kernel(x) + kernel(x + 1))
    x = tf.ones(3)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                assert function(x).numpy().tolist() == [6, 6, 6]
                assert kernel(x).numpy().tolist() == [2, 2, 2]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    rows = tf.data.Dataset.from_tensor_slices(tf.ones((40, 3)))
    found = [row.numpy().tolist() for row in rows.map(kernel.tensorflow, num_parallel_calls=4)]
    for thread in threads:
        thread.join()
    assert not failures
    assert found == [[2, 2, 2]] * 40


def test_a_kernel_that_no_program_holds_goes_when_nobody_needs_it(tf: Any, samples: Any) -> None:
    """The op's registration keeps no kernel alive that was replaced."""
    schema = "tf_test::replaced(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]"
    old = samples("axpy", schema)
    assert old(np.ones(2, "f4"), np.ones(2, "f4")).tolist() == [2, 2]
    assert callable(old.tensorflow)
    gone = weakref.ref(old)
    old = samples("axpy", schema)
    for _ in range(3):
        gc.collect()
    assert gone() is None
    assert old.key == "tf_test::replaced"


def test_an_eager_tensor_is_no_scalar(framework) -> None:
    """A tape may watch it, and its gradient would be lost."""
    tensorflow = framework("tensorflow")
    kernel = dlbridge.wrap(
        lambda x, by: by * x, "tf_scalar::scale(x: f32[n], *, by: float) -> f32[n]",
        abi="python:numpy",
    )  # fmt: skip
    for call in (kernel, kernel.tensorflow):
        with pytest.raises(UnsupportedTypeError, match="argument 'by': expected float, got "):
            call(tensorflow.ones(2), by=tensorflow.constant(2.0))


def test_variables_are_no_scalars_either(framework) -> None:
    """A tape watches them, and their gradient would be None without a word."""
    tf = framework("tensorflow")
    kernel = dlbridge.wrap(
        lambda x, by: by * x, "tf_scalar::by(x: f32[n], *, by: float) -> f32[n]",
        abi="python:numpy", vjp=lambda grad, by: by * grad,
    )  # fmt: skip
    x = tf.ones(2)
    for call, by in itertools.product((kernel, kernel.tensorflow), _scalars_of(tf)):
        with tf.GradientTape(), pytest.raises(UnsupportedTypeError, match="argument 'by'"):
            call(x, by=by)

        @tf.function
        def value(call: Any = call, by: Any = by) -> Any:
            return call(x, by=by)

        @tf.function
        def gradient(call: Any = call, by: Any = by) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(by)
                y = call(x, by=by)
            return tape.gradient(y, by)

        assert value().numpy().tolist() == [3, 3]
        with pytest.raises(ExchangeError, match="gradient would be lost"):
            gradient()
    np.testing.assert_array_equal(kernel(x, by=float(by)), [3, 3])


def _scalars_of(tf: Any) -> list[Any]:
    return [tf.Variable(3.0), tf.keras.Variable(3.0), tf.constant(3.0)]
