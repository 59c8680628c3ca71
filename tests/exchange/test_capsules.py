"""Capsules in and out: who owns what, under which name, and what a refusal leaves behind."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from dlpack_peers import (
    CPU,
    CUDA,
    EXT_DEV,
    IS_COPIED,
    READ_ONLY,
    STYLES,
    SUBBYTE_PADDED,
    Consumer,
    Description,
    ModernProducer,
    NoneProducer,
    Producer,
    RaisingProducer,
    VersionedProducer,
    capsule_address,
    capsule_name,
    describe,
    exported,
    make_capsule,
    row_major,
)

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ExchangeError

VERSIONS = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])


def matrix() -> np.ndarray[Any, Any]:
    """Return float32[3, 4], 0 to 11."""
    return np.arange(12, dtype=np.float32).reshape(3, 4)


def refusal(call: Callable[[], object]) -> ExchangeError:
    """Return the ExchangeError that `call` raises; it must be a BufferError and say something.

    Without its traceback: the frames there, and those that pytest.raises keeps, hold the tensors.
    """
    try:
        call()
    except ExchangeError as error:
        refused = error.with_traceback(None)
    else:
        pytest.fail("nothing was refused")
    assert isinstance(refused, BufferError)
    assert not isinstance(refused, TypeError)
    assert len(str(refused)) > 20
    return refused


# ---- in ----------------------------------------------------------------------------------------


@VERSIONS
def test_taking_a_capsule_renames_it_and_leaves_the_deleter_to_the_tensor(versioned: bool) -> None:
    """Ownership changes with the name: the capsule's destructor must find nothing to do."""
    producer = ModernProducer(matrix())
    capsule = producer.capsule(versioned)
    tensor = native.take_capsule(capsule)
    assert capsule_name(capsule) == ("used_dltensor_versioned" if versioned else "used_dltensor")
    del capsule
    assert producer.deleted == 0
    assert tensor.data_ptr == producer.what.data
    del tensor
    assert producer.deleted == 1


@VERSIONS
def test_the_deleter_runs_once_whichever_of_capsule_and_tensor_dies_first(versioned: bool) -> None:
    producer = ModernProducer(matrix())
    capsule = producer.capsule(versioned)
    tensor = native.take_capsule(capsule)
    del tensor
    assert producer.deleted == 1
    del capsule
    assert producer.deleted == 1


@VERSIONS
def test_a_second_import_is_refused_as_consumed_and_does_not_disturb_the_first(
    versioned: bool,
) -> None:
    producer = ModernProducer(matrix())
    capsule = producer.capsule(versioned)
    tensor = native.take_capsule(capsule)
    for take in (native.take_capsule, dlbridge.as_tensor):
        error = refusal(partial(take, capsule))
        assert error.reason == "consumed"
        assert "consumed" in str(error)
    assert producer.deleted == 0
    assert np.array_equal(np.asarray(tensor), matrix())


@VERSIONS
def test_a_failed_import_releases_exactly_once_and_consumes_the_capsule(versioned: bool) -> None:
    """After the rename only the consumer can release; the capsule must not do it again."""
    producer = ModernProducer(describe(matrix(), shape=(3, -4)))
    capsule = producer.capsule(versioned)
    assert refusal(partial(native.take_capsule, capsule)).reason == "shape"
    assert producer.deleted == 1
    assert capsule_name(capsule).startswith("used_")
    del capsule
    assert producer.deleted == 1


@VERSIONS
def test_a_dropped_capsule_of_ours_releases_its_memory(versioned: bool) -> None:
    array = matrix()
    references = sys.getrefcount(array)
    tensor = dlbridge.from_dlpack(array)
    capsule = exported(tensor, versioned)
    del tensor
    assert sys.getrefcount(array) > references
    del capsule
    assert sys.getrefcount(array) == references


def test_foreign_capsules_are_refused_and_left_alone() -> None:
    foreign = make_capsule(0x1000, b"something else")
    error = refusal(lambda: native.take_capsule(foreign))
    assert error.reason == "producer"
    assert capsule_name(foreign) == "something else"
    for other in (None, 3, "dltensor", object(), matrix()):
        assert refusal(partial(native.take_capsule, other)).reason == "producer"


def test_as_tensor_takes_raw_capsules_of_either_kind() -> None:
    for versioned in (False, True):
        producer = ModernProducer(matrix())
        tensor = dlbridge.as_tensor(producer.capsule(versioned))
        assert np.array_equal(np.asarray(tensor), matrix())
        assert tensor.version == ((1, 3) if versioned else (0, 8))
        del tensor
        assert producer.deleted == 1


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_dlpack_method_is_understood(style: str) -> None:
    """Old producers know fewer keywords; some answer with another kind than was asked for."""
    producer = STYLES[style](matrix()[:, ::2])
    tensor = dlbridge.from_dlpack(producer)
    assert np.array_equal(np.asarray(tensor), matrix()[:, ::2])
    assert tensor.strides == (4, 2)
    assert len(producer.loans) == 1, "one export is enough"
    del tensor
    assert producer.deleted == 1


@pytest.mark.parametrize("error", [TypeError("mine"), BufferError("mine"), RuntimeError("mine")])
def test_an_exception_inside_the_producer_is_its_refusal_and_not_a_reason_to_retry(
    error: Exception,
) -> None:
    """A retry on any TypeError calls the producer again, and hides what it said."""
    producer = RaisingProducer(matrix())
    producer.exception = error
    raised = refusal(lambda: dlbridge.from_dlpack(producer))
    assert "mine" in str(raised)
    assert raised.__cause__ is error
    assert len(producer.calls) == 1


def test_an_interrupt_inside_the_producer_is_not_turned_into_a_refusal() -> None:
    producer = RaisingProducer(matrix())
    producer.exception = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        dlbridge.from_dlpack(producer)


@pytest.mark.parametrize("call", ["from_dlpack", "as_tensor", "to_numpy", "asarray"])
def test_a_refusal_names_the_call_whichever_way_it_took(call: str) -> None:
    """The first call of a class goes another way than later ones."""
    producer = RaisingProducer(matrix())
    producer.exception = BufferError("mine")
    texts = {str(refusal(lambda: getattr(dlbridge, call)(producer))) for _ in range(3)}
    (text,) = texts
    assert text.startswith("from_dlpack: " if call == "from_dlpack" else f"{call}: ")
    assert len(producer.calls) == 3


class Forwarding:
    """Objects of one class that hand on what producers of different versions answer."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.inner.__dlpack_device__()
        return device

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.inner.__dlpack__(**keywords)


def test_each_object_of_a_class_may_know_another_standard() -> None:
    """A legacy answer would lose the mark of the read-only memory."""
    array = matrix()
    array.flags.writeable = False
    old, new = STYLES["stream only"](matrix()), dlbridge.from_dlpack(array)
    for inner in (old, new, old, new):
        tensor = dlbridge.from_dlpack(Forwarding(inner))
        assert tensor.readonly is (inner is new)


@pytest.mark.parametrize(
    "call", [dlbridge.from_dlpack, partial(dlbridge.to_dlpack, max_version=(1, 0))]
)
def test_nothing_keeps_a_producer_that_did_not_know_a_keyword(call: Any) -> None:
    """A cycle of its error and the traceback would, until garbage is collected."""
    inner = STYLES["stream only"](matrix())
    producer = Forwarding(inner)
    alive = weakref.ref(producer)
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        call(producer)
        del producer
        assert alive() is None
    finally:
        if is_enabled:
            gc.enable()


def test_a_producer_that_returns_no_capsule_is_named() -> None:
    error = refusal(lambda: dlbridge.from_dlpack(NoneProducer(matrix())))
    assert error.reason == "producer"
    assert "None" in str(error)


def test_a_device_index_of_none_counts_as_zero() -> None:
    """Paddle answers (1, None) for the CPU."""
    producer = ModernProducer(matrix(), device=(CPU, None))
    assert dlbridge.from_dlpack(producer).__dlpack_device__() == (CPU, 0)
    assert producer.deleted == 1


def test_the_flags_and_version_of_the_producer_are_kept() -> None:
    what = describe(matrix(), flags=READ_ONLY | IS_COPIED, version=(1, 0))
    tensor = dlbridge.from_dlpack(ModernProducer(what))
    assert tensor.readonly
    assert tensor.flags & IS_COPIED
    assert tensor.version == (1, 0)


def test_a_byte_offset_is_folded_into_the_pointer() -> None:
    """Paddle, dpnp and MXNet ignore byte_offset: nobody after us may have to know of it."""
    array = matrix()
    producer = ModernProducer(describe(array, shape=(4,), strides=(1,), byte_offset=16))
    tensor = dlbridge.from_dlpack(producer)
    assert tensor.data_ptr == array.ctypes.data + 16
    assert np.array_equal(np.asarray(tensor), array[1])


def test_absent_strides_mean_compact_row_major() -> None:
    """Before 1.2 a producer could leave strides NULL (MXNet and NumPy 1.23 do)."""
    tensor = dlbridge.from_dlpack(ModernProducer(describe(matrix(), strides=None)))
    assert tensor.strides == (4, 1)
    assert np.array_equal(np.asarray(tensor), matrix())


def test_shape_and_strides_are_our_own_copies() -> None:
    """A producer may change its arrays once the struct is handed over, and poisons them at last."""
    producer = ModernProducer(matrix())
    tensor = dlbridge.from_dlpack(producer)
    producer.loans[0].shape[0] = producer.loans[0].strides[0] = 99
    assert tensor.shape == (3, 4)
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 3)))
    assert (consumer.shape, consumer.strides) == ((3, 4), (4, 1))
    consumer.release()


# ---- out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_version", "versioned"),
    [
        (None, False),
        ((0, 8), False),
        ((1, 0), True),
        ((1, 1), True),
        ((1, 3), True),
        ((1, 99), True),
        ((2, 0), True),
    ],
)
def test_max_version_decides_between_legacy_and_versioned(
    max_version: tuple[int, int] | None, versioned: bool
) -> None:
    """A consumer of 2.0 still reads 1.x; one that gives no version reads the legacy struct."""
    tensor = dlbridge.from_dlpack(matrix())
    for capsule in (
        tensor.__dlpack__(max_version=max_version),
        dlbridge.to_dlpack(tensor, max_version=max_version),
    ):
        assert capsule_name(capsule) == ("dltensor_versioned" if versioned else "dltensor")
        consumer = Consumer(capsule)
        assert consumer.version == ((1, 3) if versioned else None)
        consumer.release()


MOST_DIMENSIONS = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32  # NumPy's limit


@VERSIONS
@pytest.mark.parametrize(
    "array",
    [
        matrix(),
        matrix()[1:, ::2],
        matrix()[::-1, ::-1],
        matrix().T,
        np.broadcast_to(np.float32(5), (3, 2)),
        np.zeros((3, 0, 2), np.float32),
        np.array(7.0, np.float32),
        np.zeros((1,) * MOST_DIMENSIONS, np.int8),
    ],
    ids=["plain", "slice", "reversed", "transposed", "broadcast", "empty", "0-d", "most-d"],
)
def test_every_export_has_a_deleter_real_strides_and_no_byte_offset(
    array: np.ndarray[Any, Any], versioned: bool
) -> None:
    """JAX aborts on a NULL deleter, Paddle ignores byte_offset, 1.2 demands strides."""
    tensor = dlbridge.from_dlpack(array)
    # What JAX and TensorFlow are given: a legacy capsule of read-only memory, never a user's.
    consumer = Consumer(tensor._capsule(versioned, force_readonly=True))
    assert consumer.has_deleter
    assert consumer.byte_offset == 0
    assert (consumer.ndim, consumer.shape) == (array.ndim, array.shape)
    assert consumer.strides is not None
    assert consumer.device == (CPU, 0)
    assert np.array_equal(consumer.values(), array)
    consumer.release()


def test_an_export_of_a_view_points_at_the_view() -> None:
    base = dlbridge.from_dlpack(matrix())
    view = base[1:, 1]
    consumer = Consumer(view.__dlpack__(max_version=(1, 3)))
    assert consumer.data == base.data_ptr + 5 * 4
    assert consumer.byte_offset == 0
    assert np.array_equal(consumer.values(), matrix()[1:, 1])
    consumer.release()


@VERSIONS
def test_an_export_outlives_the_tensor_it_came_from(versioned: bool) -> None:
    producer = ModernProducer(matrix())
    tensor = dlbridge.from_dlpack(producer)
    consumer = Consumer(exported(tensor, versioned))
    del tensor
    assert producer.deleted == 0
    assert np.array_equal(consumer.values(), matrix())
    consumer.release()
    assert producer.deleted == 1


def test_exports_are_independent_of_each_other() -> None:
    producer = ModernProducer(matrix())
    tensor = dlbridge.from_dlpack(producer)
    consumers = [Consumer(exported(tensor, i % 2 == 0)) for i in range(6)]
    assert len({consumer.address for consumer in consumers}) == 6
    del tensor
    for consumer in consumers:
        assert producer.deleted == 0
        assert np.array_equal(consumer.values(), matrix())
        consumer.release()
    assert producer.deleted == 1


def test_read_only_memory_goes_out_marked() -> None:
    array = matrix()
    array.flags.writeable = False
    tensor = dlbridge.from_dlpack(array)
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 0)))
    assert consumer.flags == READ_ONLY
    consumer.release()


def test_read_only_memory_is_not_exported_where_the_mark_would_be_lost() -> None:
    array = matrix()
    array.flags.writeable = False
    tensor = dlbridge.from_dlpack(array)
    for call in (tensor.__dlpack__, lambda: dlbridge.to_dlpack(tensor)):
        error = refusal(call)
        assert error.reason == "readonly"
        assert "max_version" in str(error), "the text says what to do"
    copy = Consumer(tensor.__dlpack__(copy=True))
    assert np.array_equal(copy.values(), array)
    copy.release()


def test_padded_sub_byte_elements_are_not_exported_where_the_mark_would_be_lost() -> None:
    array = np.arange(4, dtype=np.uint8)
    what = describe(array, dtype=(1, 4, 1), flags=SUBBYTE_PADDED)
    tensor = dlbridge.from_dlpack(ModernProducer(what))
    assert refusal(tensor.__dlpack__).reason == "version"
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 3)))
    assert consumer.flags == SUBBYTE_PADDED
    consumer.release()


@pytest.mark.parametrize("max_version", [None, (1, 3)])
def test_copy_true_always_copies_and_says_so(max_version: tuple[int, int] | None) -> None:
    array = matrix()
    tensor = dlbridge.from_dlpack(array)[:, ::2]
    consumer = Consumer(tensor.__dlpack__(copy=True, max_version=max_version))
    array[:] = -1
    assert np.array_equal(consumer.values(), matrix()[:, ::2])
    assert consumer.flags == (IS_COPIED if max_version else 0)
    consumer.release()


def test_a_copy_of_read_only_memory_is_writable() -> None:
    array = matrix()
    array.flags.writeable = False
    consumer = Consumer(dlbridge.from_dlpack(array).__dlpack__(copy=True, max_version=(1, 3)))
    assert consumer.flags == IS_COPIED
    consumer.release()


@pytest.mark.parametrize("copy", [None, False])
def test_without_copy_true_the_memory_is_shared(copy: bool | None) -> None:
    array = matrix()
    consumer = Consumer(dlbridge.from_dlpack(array).__dlpack__(copy=copy, max_version=(1, 3)))
    assert consumer.data == array.ctypes.data
    assert consumer.flags == 0
    consumer.release()


def test_an_imported_is_copied_mark_is_not_passed_on() -> None:
    """The mark speaks of one export: that nobody else holds the memory. The next one shares it."""
    tensor = dlbridge.from_dlpack(ModernProducer(describe(matrix(), flags=IS_COPIED)))
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 3)))
    assert consumer.flags == 0
    consumer.release()


# ---- keywords ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"stream": None},
        {"max_version": None},
        {"dl_device": None},
        {"copy": None},
        {"dl_device": (1, 0)},
        {"dl_device": (1, 1)},
        {"dl_device": (1, None)},
        {"stream": None, "max_version": (1, 3), "dl_device": (1, 0), "copy": False},
    ],
)
def test_the_export_serves_what_the_standard_allows(keywords: dict[str, Any]) -> None:
    """CPU memory is one device, whatever index its asker gives it."""
    consumer = Consumer(dlbridge.from_dlpack(matrix()).__dlpack__(**keywords))
    assert np.array_equal(consumer.values(), matrix())
    consumer.release()


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"stream": -1}, "stream"),
        ({"stream": 0}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": 2}, "stream"),
        ({"stream": 1 << 47}, "stream"),
        ({"stream": 1 << 80}, "stream"),
        ({"stream": -2}, "stream"),
        ({"dl_device": (2, 0)}, "device"),
        ({"dl_device": (1, 2**30)}, "device"),
        ({"dl_device": (1, 2**32)}, "device"),
        ({"dl_device": (1, -1)}, "device"),
        ({"dl_device": (1, 2**30), "copy": True}, "device"),
        ({"dl_device": (99, 0)}, "device"),
        ({"dl_device": (-1, 0)}, "device"),
        ({"dl_device": (1 << 70, 0)}, "device"),
        ({"max_version": (1 << 70, 0)}, "version"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_served_is_a_buffer_error_without_side_effects(
    keywords: dict[str, Any], reason: str
) -> None:
    """Consumers retry on TypeError, with fewer keywords: what they asked for would be forgotten."""
    array = matrix()
    references = sys.getrefcount(array)
    tensor = dlbridge.from_dlpack(array)
    before = native.live()
    assert refusal(partial(tensor.__dlpack__, **keywords)).reason == reason
    assert native.live() == before
    del tensor
    assert sys.getrefcount(array) == references


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"stream": True}, TypeError),
        ({"stream": "x"}, TypeError),
        ({"stream": 1.0}, TypeError),
        ({"dl_device": "cpu"}, TypeError),
        ({"dl_device": (1,)}, TypeError),
        ({"dl_device": ("cpu", 0)}, TypeError),
        ({"dl_device": (1, 0.0)}, TypeError),
        ({"max_version": 1}, TypeError),
        ({"max_version": [1, 0]}, TypeError),
        ({"max_version": "1.0"}, TypeError),
        ({"max_version": (1,)}, TypeError),
        ({"max_version": ("1", "0")}, TypeError),
        ({"max_version": (1, None)}, TypeError),
        ({"copy": 1}, dlbridge.ArgumentError),
        ({"copy": "yes"}, dlbridge.ArgumentError),
        ({"copy": np.array([1, 2])}, dlbridge.ArgumentError),
    ],
    ids=str,
)
def test_a_keyword_that_means_nothing_is_an_error_of_the_caller(
    keywords: dict[str, Any], error: type[Exception]
) -> None:
    """As NumPy's: a wrong type is a TypeError, a wrong value a ValueError."""
    array = matrix()
    references = sys.getrefcount(array)
    tensor = dlbridge.from_dlpack(array)
    before = native.live()
    with pytest.raises(error, match=next(iter(keywords))) as caught:
        tensor.__dlpack__(**keywords)
    assert isinstance(caught.value, dlbridge.DLBridgeError)
    assert caught.value.reason == ("argument" if "copy" in keywords else "type")
    assert native.live() == before
    del tensor, caught
    assert sys.getrefcount(array) == references


@pytest.mark.parametrize("index", [0, 1, 7, None, 65535])
def test_cpu_memory_is_one_device(index: int | None) -> None:
    """Frameworks number the CPU for their own bookkeeping: who asks for a number, gets it."""
    tensor = dlbridge.from_dlpack(matrix())
    for copy in (None, False, True):
        consumer = Consumer(tensor.__dlpack__(dl_device=(1, index), copy=copy))
        assert consumer.device == (1, index or 0)
        consumer.release()
        assert tensor.__dlpack_device__() == (1, 0)


def test_an_unknown_keyword_or_a_positional_argument_is_a_type_error() -> None:
    """Here TypeError is right: a caller with newer keywords shall retry without them."""
    tensor = dlbridge.from_dlpack(matrix())
    with pytest.raises(TypeError, match="bogus"):
        tensor.__dlpack__(bogus=1)
    with pytest.raises(TypeError, match="keyword"):
        tensor.__dlpack__(None)


def test_the_device_is_told_as_two_integers() -> None:
    pair = dlbridge.from_dlpack(matrix()).__dlpack_device__()
    assert pair == (1, 0)
    assert all(isinstance(number, int) for number in pair)


# ---- memory of other devices, faked by relabelling -----------------------------------------------


def relabelled(device: tuple[int, int]) -> ModernProducer:
    """Return a producer whose CPU memory claims to be elsewhere."""
    return ModernProducer(describe(matrix(), device=device))


@pytest.mark.parametrize("device", [(CUDA, 0), (CUDA, 3), (EXT_DEV, 1), (14, 0), (18, 7)], ids=str)
def test_memory_of_another_device_passes_through_untouched(device: tuple[int, int]) -> None:
    producer = relabelled(device)
    tensor = dlbridge.from_dlpack(producer)
    assert tensor.__dlpack_device__() == device
    for keywords in ({}, {"dl_device": device}, {"copy": False}, {"stream": -1}):
        consumer = Consumer(tensor.__dlpack__(max_version=(1, 3), **keywords))
        assert consumer.device == device
        assert consumer.data == producer.what.data
        consumer.release()
    del tensor
    assert producer.deleted == 1


@pytest.mark.parametrize(
    "keywords",
    [{"dl_device": (1, 0)}, {"dl_device": (CUDA, 1)}, {"copy": True}],
    ids=str,
)
def test_an_export_that_needs_a_copy_from_a_device_is_refused(keywords: dict[str, Any]) -> None:
    tensor = dlbridge.from_dlpack(relabelled((CUDA, 0)))
    before = native.live()
    assert refusal(lambda: tensor.__dlpack__(**keywords)).reason == "device"
    assert native.live() == before


@pytest.mark.parametrize(
    ("own", "asked"), [((1, 0), (8, 0)), ((CUDA, 0), (EXT_DEV, 0)), ((EXT_DEV, 0), (1, 0))], ids=str
)
def test_a_device_that_no_copy_reaches_is_refused_with_both_names(
    own: tuple[int, int], asked: tuple[int, int]
) -> None:
    tensor = dlbridge.from_dlpack(relabelled(own))
    error = refusal(lambda: tensor.__dlpack__(dl_device=asked))
    assert error.reason == "device"
    assert f"dl_device {asked} asked for, the memory is on {own}" in str(error)


def test_values_of_another_device_are_never_read_by_the_cpu() -> None:
    tensor = dlbridge.from_dlpack(relabelled((EXT_DEV, 0)))
    for read in (lambda: np.asarray(tensor), lambda: memoryview(tensor), tensor.copy):
        assert refusal(read).reason == "device"


# ---- refusals ----------------------------------------------------------------------------------


def test_a_versioned_capsule_that_nobody_asked_for_is_read_by_its_name() -> None:
    producer = VersionedProducer(describe(matrix(), flags=READ_ONLY))
    tensor = dlbridge.from_dlpack(producer)
    assert tensor.readonly


@pytest.mark.parametrize("kind", ["dtype", "layout", "device"])
def test_a_refused_conversion_does_not_pin_the_producers_memory(kind: str) -> None:
    """Refusals carry tracebacks, and these frames: none may keep what was refused."""
    what = {
        "dtype": Description(dtype=(17, 4, 1), data=matrix().ctypes.data, shape=(2,)),
        "layout": describe(matrix(), shape=(1,) * 65, strides=(1,) * 65),
        "device": describe(matrix(), device=(EXT_DEV, 0)),
    }[kind]
    producer: Producer = ModernProducer(what)
    refusal(lambda: dlbridge.convert(producer, "numpy", copy=False))
    assert producer.deleted == len(producer.loans) >= 1


def test_the_capsule_address_is_the_managed_tensor() -> None:
    """A consumer in C finds the struct where the standard says."""
    capsule = dlbridge.from_dlpack(matrix()).__dlpack__()
    address = capsule_address(capsule)
    consumer = Consumer(capsule)
    assert consumer.address == address
    assert row_major(consumer.shape or ()) == consumer.strides
    consumer.release()


@pytest.mark.parametrize("copy", [True, False])
def test_a_bool_of_numpy_is_a_bool(copy: bool) -> None:
    array = matrix()
    made = dlbridge.from_dlpack(dlbridge.from_dlpack(array).__dlpack__(copy=np.bool_(copy)))
    assert (made.data_ptr != array.ctypes.data) is copy
