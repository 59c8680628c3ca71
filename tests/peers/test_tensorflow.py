"""TensorFlow's own rules: eager tensors only, aligned and row-major memory, immutable values."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlpack_peers import Consumer, ModernProducer, describe

import dlbridge
from dlbridge import from_dlpack, to_numpy, to_tensorflow, to_torch
from dlbridge._core import native
from dlbridge.frameworks import tensorflow as adapter
from peers.checks import receipt_of, refused
from peers.readers import filled, read

tf = pytest.importorskip("tensorflow")

REFUSED = {
    "text": ("dtype", lambda: tf.constant(["a"])),
    "resource": ("dtype", lambda: tf.Variable([1.0]).handle),
    "qint8": ("dtype", lambda: tf.bitcast(tf.constant([1], tf.int8), tf.qint8)),
    "sparse": ("sparse", lambda: tf.sparse.from_dense(tf.eye(2))),
    "ragged": ("sparse", lambda: tf.ragged.constant([[1], [2, 3]])),
    "slices": ("sparse", lambda: tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_without_plain_memory_are_refused(name: str) -> None:
    reason, make = REFUSED[name]
    for call in (from_dlpack, to_numpy):
        refused(reason, call, make())


def test_symbolic_tensors_are_refused() -> None:
    reasons: list[str] = []

    @tf.function
    def inside(x: Any) -> Any:
        for call in (from_dlpack, to_numpy):
            reasons.append(refused("lazy", call, x))
        return x

    inside(tf.ones(3))
    assert len(reasons) == 2
    assert "tf.function" in reasons[0]


def test_a_variable_gives_its_value_now() -> None:
    variable = tf.Variable([1.0, 2.0])
    assert to_numpy(variable).tolist() == [1, 2]
    before = from_dlpack(variable)
    variable.assign([3.0, 4.0])
    assert from_dlpack(variable).tolist() == [3, 4]
    assert before.shape == (2,)


DTYPES = ["bool", "float16", "float32", "float64", "bfloat16", "complex64", "complex128"]
DTYPES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_round(name: str) -> None:
    x = tf.cast(tf.constant([[0, 1, 0], [1, 1, 0]]), name)
    tensor = from_dlpack(x)
    assert tensor.dtype == name
    back = to_tensorflow(tensor)
    assert back.dtype == x.dtype
    assert read("tensorflow", back) == read("tensorflow", x)


@pytest.mark.parametrize("triple", [(5, 32, 1), (3, 64, 1), (15, 6, 1), (14, 8, 1)])
def test_dtypes_that_tensorflow_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    refused("dtype", to_tensorflow, native.allocate((4,), triple))


CONSTRUCTED = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3b11fnuz"]
CONSTRUCTED += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_dtypes_that_tensorflow_does_not_exchange_are_copied_as_arrays(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not adapter.ADAPTER.constructs(name):
        pytest.skip(f"TensorFlow {tf.__version__} has no {name}")
    values = [[1, 0, 1], [0, 1, 1]]
    x = np.array(values, getattr(ml_dtypes, name))
    for source in (x, x.T, x[::-1], from_dlpack(x), x[:0]):
        wanted = to_numpy(source, copy=True)
        for policies in ({}, {"copy": True}, {"layout": "contiguous"}, {"device": "cpu"}):
            result = to_tensorflow(source, **policies)
            assert (type(result), result.dtype.name) == (type(tf.ones(1)), name)
            assert result.numpy().tobytes() == wanted.tobytes()
            back = to_numpy(result)
            assert (back.dtype.name, back.tobytes()) == (name, wanted.tobytes())
        refused("dtype", to_tensorflow, source, copy=False)
        refused("dtype", from_dlpack, result, copy=False)
    receipt = receipt_of(x, "tensorflow")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "tensorflow", "dtype")
    receipt = receipt_of(to_tensorflow(x), "numpy")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "tensorflow", "dtype")
    result = to_tensorflow(x)
    x[...] = x[0, 1]
    assert result.numpy().tolist() == values  # of its own memory
    assert from_dlpack(result).dtype == name


def test_vectors_are_refused() -> None:
    refused("lanes", to_tensorflow, native.allocate((4,), (2, 32, 4)))


def test_layout_and_alignment() -> None:
    x = filled((4, 6), "float32")
    for view, why in ((x, None), (x.T, "strides"), (x[::2], "strides"), (x[1:], "alignment")):
        assert receipt_of(view, "tensorflow").why == why
        y = to_tensorflow(view)
        assert np.array_equal((y + 1).numpy(), view + 1)
        lent = Consumer(tf.experimental.dlpack.to_dlpack(y))
        assert lent.data % 64 == 0
        lent.release()
        if why:
            refused(why, to_tensorflow, view, copy=False)


def test_read_only_memory_is_protected() -> None:
    x = filled((16,), "float32")
    x.flags.writeable = False
    assert read("tensorflow", to_tensorflow(x))[1] == x.ctypes.data


def test_immutable() -> None:
    x = tf.ones(4)
    for policy in ("share", "respect"):
        assert not to_numpy(x, immutable=policy).flags.writeable
    assert to_numpy(x, immutable="copy").flags.writeable
    refused("readonly", to_torch, x, immutable="respect")
    assert to_torch(x).data_ptr() == read("tensorflow", x)[1]


def test_copy() -> None:
    x = filled((16,), "float32")
    assert read("tensorflow", to_tensorflow(x, copy=True))[1] != x.ctypes.data
    own = tf.ones(4)
    assert to_tensorflow(own) is own


def test_zero_size_and_scalars() -> None:
    assert to_numpy(tf.zeros((0, 3))).shape == (0, 3)
    assert to_numpy(tf.constant(2.5)).tolist() == 2.5
    assert to_tensorflow(np.zeros((0, 3), "float32")).shape == (0, 3)
    assert to_tensorflow(filled((1,), "float32").reshape(())).shape == ()


@pytest.fixture
def without_functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the C paths, so that the public functions alone are left."""
    native.forget_types()
    monkeypatch.setattr(adapter.TensorFlow, "classify", lambda self, cls: None)
    to_tensorflow.close()
    yield
    monkeypatch.undo()
    native.forget_types()
    adapter.ADAPTER.start(to_tensorflow)


def _observe() -> list[Any]:
    x = filled((4, 6), "float32")
    seen: list[Any] = []
    for source in (x, x.T, filled((3,), "bool"), np.zeros((0, 3), "float32")):
        y = to_tensorflow(source)
        tensor = from_dlpack(y)
        seen += [y.dtype, tuple(y.shape), y.numpy().tolist(), tensor.strides, tensor.dtype]
    return [*seen, read("tensorflow", to_tensorflow(x))[1] == x.ctypes.data]


FAST: list[Any] = []


def test_the_fast_path() -> None:
    FAST.append(_observe())


def test_the_public_path_gives_the_same(without_functions: None) -> None:
    assert _observe() == (FAST[0] if FAST else _observe())
    refused("dtype", from_dlpack, tf.constant(["a"]))


def test_convert_by_module_and_type() -> None:
    assert dlbridge.convert(np.ones(2), tf).shape == (2,)
    assert dlbridge.convert(np.ones(2), type(tf.ones(1))).shape == (2,)


# ---- known defects -----------------------------------------------------------------------------


@pytest.mark.preloaded("tensorflow")
@pytest.mark.subprocess
@pytest.mark.fact(2)
@pytest.mark.fact(3)
def test_memory_and_shapes_that_abort_tensorflow_do_not_reach_it(
    run_python: Callable[..., Any],
) -> None:
    """TensorFlow 2.21 imports misaligned memory, and the first operation on it aborts."""
    run_python(
        """
        import numpy as np, dlbridge, tensorflow as tf
        from peers.readers import filled
        from dlpack_peers import Description, ModernProducer
        for offset in (1, 4, 16, 32, 0):
            x = filled((8, 8), "float32", offset)
            y = dlbridge.to_tensorflow(x)
            assert dlbridge.explain(x, "tensorflow").why == ("alignment" if offset else None)
            assert np.array_equal((y + 1).numpy(), x + 1)
            assert np.array_equal(tf.matmul(y, y).numpy(), x @ x)
            assert tf.reduce_sum(y).numpy() == x.sum()
            assert np.array_equal(tf.function(lambda z: z * 2)(y).numpy(), x * 2)

        def refused(reason, source, take=dlbridge.from_dlpack):
            try:
                take(source)
            except dlbridge.ExchangeError as error:
                assert error.reason == reason, error
            else:
                raise AssertionError("entered TensorFlow")

        refused("dtype", tf.constant(["a"]))
        data = filled((1,), "float32").ctypes.data
        wrong = {
            "shape": Description(shape=(-1,), data=data),
            "overflow": Description(shape=(2**40, 2**40), strides=None, data=data),
            "ndim": Description(shape=(1,) * 255, strides=None, data=data),
        }
        for reason, what in wrong.items():
            refused(reason, ModernProducer(what), dlbridge.to_tensorflow)
        """
    ).check()


@pytest.mark.fact(3)
def test_strings_are_refused_before_their_export() -> None:
    """`__dlpack__` of a string tensor aborts the process."""
    assert "string" in refused("dtype", from_dlpack, tf.constant(["a"]))


@pytest.mark.fact(12)
def test_vectors_are_refused_in_every_form() -> None:
    """TensorFlow reads four lanes of float32 as one, without an error."""
    x = filled((8,), "float32")
    four = ModernProducer(describe(x, dtype=(2, 32, 4), shape=(2,)))
    refused("lanes", dlbridge.to_tensorflow, four)
    refused("lanes", from_dlpack, ModernProducer(describe(x, dtype=(2, 32, 0))))
    assert from_dlpack(four).dtype.lanes == 4


@pytest.mark.full
@pytest.mark.subprocess
def test_a_variable_of_keras_is_the_memory_of_its_tensor(run_python: Callable[..., Any]) -> None:
    pytest.importorskip("keras")
    code = """
        import os
        os.environ["KERAS_BACKEND"] = "tensorflow"
        import keras, dlbridge
        variable = keras.Variable([1.0, 2.0])
        tensor = dlbridge.from_dlpack(variable)
        assert tensor.tolist() == [1, 2] and str(tensor.dtype) == "float32", tensor
        assert tensor.data_ptr == dlbridge.from_dlpack(variable.value).data_ptr
        assert dlbridge.to_numpy(variable).tolist() == [1, 2]
        print("done")
    """
    assert run_python(code).check().splitlines()[-1] == "done"


@pytest.mark.fact(48)
@pytest.mark.subprocess
@pytest.mark.unsanitized("the crashes of others are told by a sanitizer instead")
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_triton_has_to_be_imported_first(run_python: Callable[..., Any]) -> None:
    """Both have an LLVM of their own, whose options are the process's."""
    ended = run_python("import tensorflow, triton").returncode
    assert ended in (-signal.SIGABRT, -signal.SIGSEGV)  # the second with triton 3.8
    run_python("import triton, tensorflow").check()


@pytest.mark.full
@pytest.mark.preloaded("tensorflow")
def test_nothing_imports_triton_after_tensorflow(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    """An exchange or a layer has no need of it; what has would end the process, and is refused."""
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    if find_spec("triton") is None:  # a module that ends the process as well
        (tmp_path / "triton.py").write_text("import os\nos.abort()\n")
    run_python(
        """
        import sys, tensorflow, torch, jax.numpy as jnp, dlbridge
        sys.path.append(sys.argv[1])
        tensor = torch.ones(2, 3)
        dlbridge.to_tensorflow(tensor)
        scale = {"w": jnp.ones(3)}
        layer = dlbridge.bridge(lambda p, x: jnp.tanh(x) * p["w"], to="torch", params=scale)
        layer(tensor).sum().backward()
        function, parameters = dlbridge.bridge(torch.nn.Linear(3, 3), to="jax")
        try:
            function(parameters, jnp.ones((2, 3)))
        except dlbridge.ArgumentError as error:
            assert "import triton before tensorflow" in str(error), error
        else:
            raise AssertionError("fake tensors were made")
        assert "triton" not in sys.modules
        """,
        tmp_path,
    ).check()


def test_narrow_dtypes_go_to_tensorflow_where_its_constructor_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `tensorflow.constant`, with the same values."""
    types = pytest.importorskip("ml_dtypes")
    array = np.array([0.5, -2.0, 1.0], types.float8_e4m3fn)
    direct = adapter._constant(array)
    monkeypatch.setattr(adapter, "_constructor", lambda: None)
    for made in (adapter._constant(array), to_tensorflow(array)):
        assert isinstance(made, tf.Tensor)
        assert made.dtype == direct.dtype == tf.dtypes.experimental.float8_e4m3fn
        assert made.numpy().tobytes() == direct.numpy().tobytes() == array.tobytes()
