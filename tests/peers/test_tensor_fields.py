"""One test for every known defect of the libraries that share this environment.

The number in a test's name is the line of the list by which the adapters' quirks count. Each test
shows that dlbridge is right, or refuses with a reason before the other library is entered. What
would kill the process runs in one of its own. The defects of Paddle (5, 8, 24), dpnp and MXNet (28)
are tested in the files of these libraries.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlpack_peers import (
    CUDA,
    READ_ONLY,
    BareProducer,
    Consumer,
    Description,
    LegacyProducer,
    ModernProducer,
    Producer,
    RaisingProducer,
    StreamOnlyProducer,
    VersionedProducer,
    describe,
)

import dlbridge
from dlbridge import ExchangeError, as_tensor, convert, explain, from_dlpack
from dlbridge._core import native
from peers.checks import refused
from peers.readers import filled, has, memory, read

if not all(map(has, ("torch", "jax", "tensorflow"))):
    pytest.skip("torch, jax and tensorflow are not installed together", allow_module_level=True)

ml_dtypes = pytest.importorskip("ml_dtypes")

CONSUMERS = [
    name
    for name, module in {
        "numpy": "numpy",
        "torch": "torch",
        "jax": "jax",
        "tensorflow": "tensorflow",
        "tvm": "tvm_ffi",
        "mlx": "mlx",
        "pyarrow": "pyarrow",
    }.items()
    if has(module)
]
each_consumer = pytest.mark.parametrize("consumer", CONSUMERS)
subprocess_test = pytest.mark.subprocess
Run = Callable[..., Any]


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


@pytest.fixture
def tf() -> Any:
    return pytest.importorskip("tensorflow")


# ---- process killers ---------------------------------------------------------------------------


@subprocess_test
def test_01_torch_aborts_on_negative_strides(run_python: Run) -> None:
    run_python(
        """
        import numpy as np, dlbridge, torch
        x = np.arange(6.0)[::-1]
        sources = [x, dlbridge.from_dlpack(x)]
        for name in ("to_tvm", "to_numpy"):
            sources.append(getattr(dlbridge, name)(x))
        for source in sources:
            assert dlbridge.to_torch(source).tolist() == [5, 4, 3, 2, 1, 0]
            assert dlbridge.explain(source, "torch").why == "strides"
            try:
                dlbridge.to_torch(source, copy=False)
            except dlbridge.ExchangeError as error:
                assert error.reason == "strides"
            else:
                raise AssertionError("entered torch")
        """
    ).check()


@subprocess_test
def test_02_tensorflow_aborts_on_misaligned_memory_and_03_on_strings(run_python: Run) -> None:
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


def test_03_tensorflow_strings_are_refused_before_the_export(tf: Any) -> None:
    assert "string" in refused("dtype", from_dlpack, tf.constant(["a"]))


@subprocess_test
def test_04_jax_aborts_on_a_null_deleter(run_python: Run) -> None:
    run_python(
        """
        import gc, dlbridge
        from dlpack_peers import BareProducer, ModernProducer, describe
        from peers.readers import filled
        x = filled((4,), "float32")
        for kind in (ModernProducer, BareProducer):
            producer = kind(describe(x, has_deleter=False))
            y = dlbridge.to_jax(producer)
            assert y.unsafe_buffer_pointer() == x.ctypes.data and y.tolist() == [0, 1, 2, 3]
            del y
            gc.collect()
        """
    ).check()


MALFORMED = {
    "shape": Description(shape=(-2,)),
    "overflow": Description(shape=(2**33, 2**33), strides=None),
    "ndim": Description(shape=(1,), ndim=-1),
    "null_shape": Description(shape=None, strides=None, ndim=1),
    "null_data": Description(shape=(3,), data=None),
}


@each_consumer
@pytest.mark.parametrize("reason", MALFORMED)
def test_06_malformed_tensors_reach_no_library(consumer: str, reason: str) -> None:
    x = memory((4,), "float32")
    data = None if reason == "null_data" else x.ctypes.data
    producer = ModernProducer(MALFORMED[reason].but(data=data, keeps=x))
    refused(reason, convert, producer, consumer)
    assert producer.deleted == len(producer.loans)


def test_07_torch_ignores_read_only(torch: Any, tmp_path: Any) -> None:
    path = tmp_path / "x"
    np.arange(4.0).tofile(path)
    x = np.memmap(path, mode="r", dtype=np.float64)
    assert 'readonly="copy"' in refused("readonly", dlbridge.to_torch, x)
    copied = dlbridge.to_torch(x, readonly="copy")
    copied[0] = 7
    assert x[0] == 0
    shared = dlbridge.to_torch(x, readonly="share")
    assert shared.data_ptr() == x.ctypes.data


# ---- silent wrong data -------------------------------------------------------------------------


@each_consumer
def test_09_byte_offset_is_folded_into_the_pointer(consumer: str) -> None:
    x = filled((64,), "float32")
    producer = ModernProducer(describe(x, byte_offset=64, shape=(16,)))
    values, address = read(consumer, convert(producer, consumer))
    assert values == x[16:32].tobytes()
    assert consumer == "mlx" or address == x[16:].ctypes.data
    out = Consumer(from_dlpack(producer).__dlpack__(max_version=(1, 3)))
    assert (out.byte_offset, out.data) == (0, x[16:].ctypes.data)
    out.release()


@pytest.mark.skipif(not has("mlx"), reason="mlx is not installed")
@each_consumer
def test_09_views_of_mlx_have_a_byte_offset(consumer: str) -> None:
    import mlx.core as mx

    x = mx.array(np.arange(24, dtype="float32").reshape(4, 6))
    lent = Consumer(x[1:].__dlpack__())
    assert lent.byte_offset == 24, "MLX has changed: this test shows nothing any more"
    lent.release()
    for view in (x[1:], x[:, ::-1], x[1:, ::-2]):
        if consumer != "mlx":
            assert read(consumer, convert(view, consumer))[0] == np.array(view).tobytes()


def test_10_jax_does_not_copy_when_asked(jax: Any) -> None:
    x = filled((16,), "float32")
    theirs = jax.dlpack.from_dlpack(x, copy=True)
    ours = dlbridge.to_jax(x, copy=True)
    assert theirs.unsafe_buffer_pointer() == x.ctypes.data, "JAX has changed"
    x[0] = 99
    assert ours[0] == 0
    assert ours.unsafe_buffer_pointer() != x.ctypes.data


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_11_jax_narrows_wide_types_without_x64(jax: Any, dtype: str) -> None:
    x = filled((4,), dtype)
    refused("dtype", dlbridge.to_jax, x)
    with jax.enable_x64(True):
        y = dlbridge.to_jax(x)
        assert y.dtype == dtype
        assert y.unsafe_buffer_pointer() == x.ctypes.data
    refused("dtype", dlbridge.to_jax, x)


@pytest.mark.skipif(not has("mlx"), reason="mlx is not installed")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_11_mlx_narrows_wide_types(dtype: str) -> None:
    refused("dtype", dlbridge.to_mlx, filled((4,), dtype))


def test_12_tensorflow_ignores_lanes() -> None:
    x = filled((8,), "float32")
    four = ModernProducer(describe(x, dtype=(2, 32, 4), shape=(2,)))
    refused("lanes", dlbridge.to_tensorflow, four)
    refused("lanes", from_dlpack, ModernProducer(describe(x, dtype=(2, 32, 0))))
    assert from_dlpack(four).dtype.lanes == 4


def test_13_torch_exports_negative_and_conjugate_tensors_without_their_sign(torch: Any) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert dlbridge.to_numpy(x.conj().imag).tolist() == [-2, 4]
    assert dlbridge.to_numpy(x.conj()).tolist() == [1 - 2j, 3 + 4j]
    refused("negative_bit", dlbridge.to_numpy, x.conj().imag, copy=False)
    refused("conjugate", dlbridge.to_numpy, x.conj(), copy=False)


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("kind", ["int", "uint"])
def test_13_torch_exports_odd_integer_widths_as_eight_bits(
    torch: Any, kind: str, bits: int
) -> None:
    x = torch.empty(4, dtype=getattr(torch, f"{kind}{bits}"))
    refused("dtype", from_dlpack, x)


def test_13_torch_exports_tensors_without_memory(torch: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    refused("lazy", from_dlpack, fake)
    gone = torch.ones(3)
    gone.untyped_storage().resize_(0)
    refused("null_data", from_dlpack, gone)


def test_13_the_table_of_torch_exports_gradients(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    assert native.take_table(x, torch.Tensor.__dlpack_c_exchange_api__).shape == (3,)
    refused("requires_grad", from_dlpack, x)
    assert dlbridge.to_numpy(x, grad="detach").tolist() == [1, 1, 1]


def test_14_numpy_invents_memory_for_null_data() -> None:
    refused("null_data", dlbridge.to_numpy, ModernProducer(Description(shape=(3,), data=None)))


def test_15_masked_arrays_lose_their_mask() -> None:
    x = np.ma.array([1.0, 2, 3], mask=[0, 1, 0])
    assert "filled" in refused("masked", from_dlpack, x)
    assert from_dlpack(np.ma.array([1.0, 2])).tolist() == [1, 2]


def test_16_immutable_values_are_handed_out_unmarked(torch: Any, jax: Any, tf: Any) -> None:
    for x in (jax.numpy.ones(4), tf.ones(4)):
        shared = dlbridge.to_torch(x)
        assert shared.data_ptr() == dlbridge.from_dlpack(x).data_ptr
        refused("readonly", dlbridge.to_torch, x, immutable="respect")
        assert not dlbridge.to_numpy(x, immutable="respect").flags.writeable


@pytest.mark.skipif(not has("pyarrow"), reason="pyarrow is not installed")
def test_16_arrow_arrays_are_read_only_in_legacy_capsules_too() -> None:
    import pyarrow as pa

    array = pa.array([1, 2, 3])
    assert from_dlpack(array).readonly
    refused("readonly", dlbridge.to_torch, array)


@pytest.mark.skipif(not has("tvm_ffi"), reason="tvm_ffi is not installed")
def test_17_tvm_ffi_ignores_copy_and_device_for_a_legacy_capsule() -> None:
    import tvm_ffi

    x = tvm_ffi.from_dlpack(np.arange(4.0))
    ignored = Consumer(x.__dlpack__(copy=True))
    assert ignored.data == x.data_ptr(), "tvm_ffi has changed"
    ignored.release()
    assert from_dlpack(x, copy=True).data_ptr != x.data_ptr()
    refused("device", from_dlpack, x, device="cuda:0")


@pytest.mark.skipif(not has("mlx"), reason="mlx is not installed")
def test_17_mlx_and_torch_relabel_the_cpu(torch: Any) -> None:
    import mlx.core as mx

    for x in (mx.array([1.0, 2]), torch.ones(2)):
        tensor = from_dlpack(x, device=(1, 7))
        assert tensor.device == "cpu"
        assert tensor.__dlpack_device__() == (1, 0)


@each_consumer
def test_18_copy_true_is_believed_of_nobody(consumer: str) -> None:
    x = filled((16,), "float32")
    liar = ModernProducer(x)  # gives the same memory, whatever copy says
    result = convert(liar, consumer, copy=True)
    assert read(consumer, result)[1] != x.ctypes.data
    assert all(call.get("copy") is None for call in liar.calls)
    out = Consumer(from_dlpack(x).__dlpack__(max_version=(1, 3), copy=True))
    assert out.flags & 2
    assert out.data != x.ctypes.data
    out.release()


# ---- refusals and version traps ----------------------------------------------------------------


def test_19_a_request_for_a_versioned_capsule_is_answered_with_a_legacy_one(
    jax: Any, tf: Any
) -> None:
    producers = [jax.numpy.ones(3), tf.ones(3)]
    if has("mlx"):
        import mlx.core as mx

        producers.append(mx.ones(3))
    for x in producers:
        lent = Consumer(x.__dlpack__(max_version=(1, 3)))
        assert not lent.versioned, f"{type(x)} has changed"
        lent.release()
        assert dlbridge.to_numpy(x).tolist() == [1, 1, 1]
        if has("pyarrow"):  # takes versioned capsules only
            assert dlbridge.to_pyarrow(x).to_numpy().tolist() == [1, 1, 1]
    assert from_dlpack(LegacyProducer(filled((3,), "float32"))).shape == (3,)
    assert from_dlpack(VersionedProducer(filled((3,), "float32"))).version == (1, 3)


def test_20_read_only_memory_reaches_those_who_know_no_versioned_capsule() -> None:
    x = filled((16,), "float32")
    x.flags.writeable = False
    for consumer in ("jax", "tensorflow"):  # their values never change: they protect it
        assert read(consumer, convert(x, consumer))[1] == x.ctypes.data
    if has("tvm_ffi"):
        refused("readonly", dlbridge.to_tvm, x)
        assert dlbridge.to_tvm(x, readonly="copy").data_ptr() != x.ctypes.data


def test_21_numpy_marks_legacy_imports_read_only() -> None:
    x = filled((3,), "float32")
    y = dlbridge.to_numpy(LegacyProducer(x))
    assert y.flags.writeable
    assert y.ctypes.data == x.ctypes.data


def test_22_numpy_knows_no_bfloat16_in_dlpack(torch: Any) -> None:
    x = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    y = dlbridge.to_numpy(x)
    assert y.dtype == ml_dtypes.bfloat16
    assert y.ctypes.data == x.data_ptr()
    assert dlbridge.to_torch(y).data_ptr() == x.data_ptr()
    if has("pyarrow"):
        refused("dtype", dlbridge.to_pyarrow, x)


def test_23_there_are_two_spellings_of_float4(torch: Any, jax: Any) -> None:
    pairs = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert from_dlpack(pairs)._dtype_triple == (17, 4, 2)
    refused("lanes", dlbridge.to_jax, pairs)
    single = jax.numpy.zeros(4, dtype=jax.numpy.float4_e2m1fn)
    assert from_dlpack(single)._dtype_triple == (17, 4, 1)
    for consumer in ("torch", "jax"):
        if consumer != "jax":
            refused("dtype", convert, single, consumer)
        refused("dtype", convert, from_dlpack(single), consumer)
    assert dlbridge.to_torch(from_dlpack(pairs)).dtype == torch.float4_e2m1fn_x2


def test_24_none_as_a_device_index_counts_as_zero() -> None:
    x = filled((3,), "float32")
    assert from_dlpack(ModernProducer(x, device=(1, None)), device="cpu").device == "cpu"


@subprocess_test
def test_25_jax_says_two_things_about_its_second_cpu(run_python: Run) -> None:
    run_python(
        """
        import dlbridge, jax
        x = jax.device_put(jax.numpy.arange(3.0), jax.devices("cpu")[1])
        for tensor in (dlbridge.from_dlpack(x), dlbridge.as_tensor(x, device="cpu")):
            assert tensor.__dlpack_device__() == (1, 0) and tensor.tolist() == [0, 1, 2]
        assert dlbridge.to_numpy(x).tolist() == [0, 1, 2]
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    ).check()


def test_26_no_keyword_is_passed_that_is_not_needed() -> None:
    for kind, calls in (
        (ModernProducer, [{"max_version": (1, 3)}]),
        (StreamOnlyProducer, [{}]),
        (BareProducer, [{}]),
    ):
        producer = kind(filled((3,), "float32"))
        with dlbridge.receipts():
            from_dlpack(producer)
        seen = [{k: v for k, v in call.items() if v is not None} for call in producer.calls]
        assert seen == calls


@pytest.mark.parametrize("error", [TypeError, BufferError, ValueError, AttributeError])
def test_27_a_producer_that_refuses_is_asked_once(error: type[Exception]) -> None:
    class Refusing(RaisingProducer):
        def __dlpack__(self, **keywords: object) -> object:
            self.calls.append(keywords)
            raise error("not today")

    producer = Refusing(filled((3,), "float32"))
    text = refused("producer", from_dlpack, producer)
    assert "not today" in text
    assert len(producer.calls) == 1


def test_27_our_own_refusals_are_no_type_errors() -> None:
    x = filled((3,), "float32")
    x.flags.writeable = False
    with pytest.raises(BufferError) as caught:
        from_dlpack(x).__dlpack__()
    assert not isinstance(caught.value, TypeError)


@each_consumer
@pytest.mark.parametrize("kind", [ModernProducer, BareProducer])
def test_29_null_pointers_where_the_standard_allows_them(
    consumer: str, kind: type[Producer]
) -> None:
    x = filled((2, 3), "float32")
    compact = convert(kind(describe(x, strides=None)), consumer)
    assert read(consumer, compact)[0] == x.tobytes()
    scalar = convert(kind(describe(x, shape=None, strides=None, ndim=0)), consumer)
    assert tuple(scalar.shape) == ()
    empty = convert(kind(describe(x, shape=(0, 3), strides=None, data=None)), consumer)
    assert tuple(empty.shape) == (0, 3)


@pytest.mark.parametrize(("consumer", "most"), [("numpy", 64), ("torch", 64), ("jax", 64)])
def test_30_limits_of_rank(consumer: str, most: int) -> None:
    x = memory((1,) * most, "float32")
    assert convert(x, consumer).ndim == most
    beyond = Description(shape=(1,) * 65, strides=None, data=x.ctypes.data, keeps=x)
    if consumer == "numpy":
        refused("ndim", convert, ModernProducer(beyond), consumer)


def test_30_odd_strides_of_single_elements_matter_to_nobody() -> None:
    x = filled((6,), "float32")
    odd = ModernProducer(describe(x, shape=(1, 6, 1), strides=(-5, 1, 77)))
    for consumer in CONSUMERS:
        receipt = explain(odd, consumer)
        assert receipt.shared or consumer == "mlx"
        assert read(consumer, convert(odd, consumer))[0] == x.tobytes()


def test_31_jax_copies_below_its_alignment_and_mlx_always(jax: Any) -> None:
    x = filled((16,), "float32", offset=4)
    assert explain(x, "jax").copied_by == "dlbridge"
    refused("alignment", dlbridge.to_jax, x, copy=False)
    if has("mlx"):
        assert explain(filled((16,), "float32"), "mlx").copied_by == "mlx"
        refused("copy_required", dlbridge.to_mlx, x, copy=False)


@each_consumer
def test_32_another_major_version_and_unknown_flags_go_nowhere(consumer: str) -> None:
    x = filled((3,), "float32")
    for reason, changes in (("version", {"version": (2, 0)}), ("flags", {"flags": 1 << 5})):
        producer = VersionedProducer(describe(x, **changes))
        refused(reason, convert, producer, consumer)
        assert _settles(lambda producer=producer: producer.deleted == len(producer.loans))


FOREIGN = {"cuda": 2, "opencl": 4, "metal": 8, "rocm": 10, "ext_dev": 12, "oneapi": 14, "maia": 17}


@each_consumer
@pytest.mark.parametrize("device", FOREIGN)
def test_33_memory_of_other_devices_is_read_by_nobody_here(consumer: str, device: str) -> None:
    x = filled((3,), "float32")
    producer = ModernProducer(describe(x, device=(FOREIGN[device], 0)))
    if consumer == "tvm":  # takes any device, and reads nothing itself
        assert convert(producer, consumer).__dlpack_device__() == (FOREIGN[device], 0)
        return
    refused("device", convert, producer, consumer)
    refused("device", convert, producer, consumer, copy=True)
    assert _settles(lambda: producer.deleted == len(producer.loans))


@pytest.mark.parametrize("device", [3, 11, 13])
def test_33_pinned_and_managed_memory_is_host_memory_to_numpy(device: int) -> None:
    x = filled((3,), "float32")
    y = dlbridge.to_numpy(ModernProducer(describe(x, device=(device, 0))))
    assert y.ctypes.data == x.ctypes.data
    refused("device", dlbridge.to_torch, ModernProducer(describe(x, device=(device, 0))))


# ---- lifetime ----------------------------------------------------------------------------------


@each_consumer
def test_34_the_last_reference_may_die_on_any_thread(consumer: str) -> None:
    producer = ModernProducer(filled((16,), "float32"))
    held = [convert(producer, consumer)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert _settles(lambda: [loan.deleted for loan in producer.loans] == [1])


@subprocess_test
def test_35_arrays_may_survive_the_interpreter(run_python: Run) -> None:
    run = run_python(
        """
        import sys, dlbridge
        from peers.readers import filled, has
        modules = {"tvm": "tvm_ffi"}
        kept = sys.kept = []
        for name in ("numpy", "torch", "jax", "tensorflow", "tvm", "mlx", "pyarrow"):
            if has(modules.get(name, name)):
                y = dlbridge.convert(filled((16,), "float32"), name)
                kept += [y, dlbridge.from_dlpack(y), dlbridge.to_numpy(y)]
        print(len(kept))
        """
    )
    assert int(run.check()) >= 12
    assert "Error" not in run.stderr
    assert "Fatal" not in run.stderr


@each_consumer
@pytest.mark.parametrize("device", [1, CUDA, 4])
def test_36_every_deleter_is_called_exactly_once(consumer: str, device: int) -> None:
    producer = ModernProducer(describe(filled((16,), "float32"), device=(device, 0)))
    try:
        result = convert(producer, consumer)
        del result
    except ExchangeError:
        pass
    assert producer.loans
    assert _settles(lambda: all(loan.deleted == 1 for loan in producer.loans))


def _settles(condition: Callable[[], bool]) -> bool:
    """Wait for a library that calls deleters on a thread of its own."""
    for _ in range(200):
        if condition():
            return True
        gc.collect()
        threading.Event().wait(0.01)
    return False


def test_37_every_export_is_a_new_capsule() -> None:
    tensor = from_dlpack(filled((3,), "float32"))
    first, second = tensor.__dlpack__(), tensor.__dlpack__()
    assert first is not second
    assert as_tensor(first).data_ptr == as_tensor(second).data_ptr
    refused("consumed", as_tensor, first)


@each_consumer
@pytest.mark.parametrize("versioned", [False, True])
def test_38_raw_capsules_of_both_kinds_reach_everybody(consumer: str, versioned: bool) -> None:
    x = filled((16,), "float32")
    capsule = Producer(x).capsule(versioned)
    assert read(consumer, convert(capsule, consumer))[0] == x.tobytes()
    refused("consumed", convert, capsule, consumer)


# ---- the exchange table ------------------------------------------------------------------------


@pytest.fixture
def memory_view() -> Any:
    module = pytest.importorskip("cuda.core.utils", exc_type=ImportError)
    return module.StridedMemoryView


def test_39_tables_are_used_where_they_are_offered(torch: Any, memory_view: Any) -> None:
    x = filled((2, 3), "float32")
    for source in (torch.from_numpy(x), memory_view.from_any_interface(x, stream_ptr=-1)):
        assert hasattr(type(source), "__dlpack_c_exchange_api__")
        tensor = from_dlpack(source)
        assert tensor.data_ptr == x.ctypes.data
        assert dlbridge.to_numpy(source).tolist() == x.tolist()


@pytest.mark.skipif(not has("tvm_ffi"), reason="tvm_ffi is not installed")
def test_40_tvm_ffi_uses_our_table_and_checks_no_mark() -> None:
    import tvm_ffi

    x = filled((2, 3), "float32")
    assert tvm_ffi.from_dlpack(from_dlpack(x)).data_ptr() == x.ctypes.data
    echo = tvm_ffi.convert(lambda y: y)
    assert isinstance(echo(from_dlpack(x)), dlbridge.Tensor)
    marked = ModernProducer(describe(x, flags=READ_ONLY))
    refused("readonly", dlbridge.to_tvm, marked)


def test_41_a_failing_allocator_is_an_error_whatever_it_says(torch: Any, memory_view: Any) -> None:
    table = torch.Tensor.__dlpack_c_exchange_api__
    with pytest.raises(MemoryError):
        native.allocate_table(table, (3,), (17, 4, 1), (1, 0))
    with pytest.raises(NotImplementedError):
        native.allocate_table(memory_view.__dlpack_c_exchange_api__, (3,), (2, 32, 1), (1, 0))
    assert native.allocate_table(table, (3,), (2, 32, 1), (1, 0)).shape == (3,)
