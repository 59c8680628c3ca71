"""The rules for consumers: what `from_dlpack` must do with a capsule and its memory."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge._core import ffi, lib
from dlbridge.check import faults
from dlbridge.check.faults import Description, ModernProducer, Producer, Versioned, describe
from dlbridge.check.producer_rules import (
    CAPSULE,
    MANAGED,
    METHOD,
    TENSOR,
    growth,
    native_destructor,
    newest,
    read,
    same,
    start,
    text,
    values,
)
from dlbridge.check.rules import BrokenError, NotApplicableError, need, rule

FROM = "Python specification, from_dlpack"
PATIENCE = 1.0  # seconds that a consumer may take to release on a thread of its own


class ConsumerCase:
    """A consumer: a function that takes a producer and returns a tensor, or raises."""

    def __init__(self, from_dlpack: Callable[..., Any]) -> None:
        self.from_dlpack = from_dlpack

    def try_out(self) -> None:
        """Import once: what ends its process, or never answers, cannot be checked at all."""
        try:
            self.from_dlpack(peer_of())
        except Exception:  # noqa: BLE001  (`takes_versioned` reports it)
            return

    def take(self, producer: Any) -> Any:
        """Return the result, or nothing can be said."""
        try:
            return self.from_dlpack(producer)
        except Exception as error:  # noqa: BLE001
            raise NotApplicableError(f"refused: {text(error)}") from None

    def refuses(self, producer: Any, what: str) -> None:
        """Demand that it raises."""
        try:
            result = self.from_dlpack(producer)
        except Exception:  # noqa: BLE001
            return
        _kept.append(result)  # what it is made of may crash when it dies
        raise BrokenError(f"it took {what}")


_kept: list[object] = []


def aligned(array: np.ndarray[Any, Any], offset: int = 0) -> np.ndarray[Any, Any]:
    """Return a copy of the array at an address that is `offset` modulo 64."""
    memory = np.zeros(array.nbytes + 192, "uint8")
    first = -memory.ctypes.data % 64 + offset
    part = memory[first : first + array.nbytes]
    out: np.ndarray[Any, Any] = part.view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def peer_of(array: np.ndarray[Any, Any] | None = None, **changes: Any) -> ModernProducer:
    """Return a producer of aligned memory, changed as asked."""
    return ModernProducer(describe(aligned(values() if array is None else array), **changes))


def seen(result: Any) -> np.ndarray[Any, Any]:
    """Return what a result's elements are."""
    if hasattr(result, "__dlpack__"):
        try:
            capsule = newest(result)
            found = faults.Consumer(capsule)
        except (NotApplicableError, ValueError, TypeError):
            pass
        else:
            try:
                return read(found)
            finally:
                found.release()
    try:
        return np.array(result)
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"the result cannot be read: {text(error)}") from None


def address(result: Any) -> int:
    """Return where the elements of a result are."""
    if hasattr(result, "__dlpack__"):
        found = faults.Consumer(newest(result))
        try:
            return start(found)
        finally:
            found.release()
    interface = getattr(result, "__array_interface__", None)
    if interface is None:
        raise NotApplicableError("the result does not say where it is")
    return int(interface["data"][0])


class Counted(ModernProducer):
    """Counts the calls of its deleters without Python, which cannot run while an error is pending.

    The deleter adds one to the first word of the struct; it and the destructor of the capsules are
    the core's, in C.
    """

    def capsule(self, versioned: bool = True) -> Any:
        """Return a new capsule, without Python in deleter and destructor."""
        loan = faults.lend(self.what.but(has_deleter=False), versioned)
        deleter = ffi.addressof(lib, "dlb_count_deletion")
        loan.struct.deleter = int(ffi.cast("intptr_t", deleter))
        self.loans.append(loan)
        self.before = [*getattr(self, "before", []), _first_word(loan)]
        name = faults.VERSIONED if versioned else faults.LEGACY
        return faults.make_capsule(loan.address, name, native_destructor(versioned))

    @property
    def deleted(self) -> int:
        """How often deleters were called."""
        pairs = zip(self.loans, getattr(self, "before", []), strict=True)
        return sum(_first_word(loan) - before for loan, before in pairs)


def _first_word(loan: faults.Loan) -> int:
    return ctypes.c_int64.from_address(loan.address).value


def counted_peer(**changes: Any) -> Counted:
    """Return a producer whose deleters are counted also while an error is pending."""
    return Counted(describe(aligned(values()), **changes))


def settled(producer: Producer, count: int) -> int:
    """Wait until the deleters were called so often; return how often they were."""
    end = time.monotonic() + PATIENCE
    gc.collect()
    while producer.deleted < count and time.monotonic() < end:
        gc.collect()
        time.sleep(0.005)
    return producer.deleted


def imports(peer: ConsumerCase, make: Callable[[np.ndarray[Any, Any]], Producer]) -> None:
    """Demand the values of a producer that dies. Its memory stays: when it goes is another rule."""
    array = aligned(values())
    got = seen(peer.from_dlpack(make(array)))
    need(same(got, values()), f"{got.tolist()} instead of {values().tolist()}")


def agrees(peer: ConsumerCase, producer: Producer, expected: np.ndarray[Any, Any]) -> None:
    """Compare the result; a refusal is fine."""
    result = peer.take(producer)
    got = seen(result)
    need(same(got, expected), f"{got.tolist()} instead of {expected.tolist()}")


# ---- what it takes -------------------------------------------------------------------------------


@rule("consumer", "must", FROM)
def takes_versioned(peer: ConsumerCase) -> None:
    """It imports from a producer of DLPack 1.3, because that is the standard."""
    imports(peer, ModernProducer)


@rule("consumer", "must", FROM)
def takes_legacy(peer: ConsumerCase) -> None:
    """It imports a legacy capsule, also after asking for DLPack 1.3, as JAX and others give it."""
    imports(peer, faults.LegacyProducer)


@rule("consumer", "should", FROM)
def takes_old_producers(peer: ConsumerCase) -> None:
    """It asks again without the new keywords after a TypeError, as older producers know none."""
    imports(peer, faults.StreamOnlyProducer)


@rule("consumer", "should", FROM)
def asks_for_versions(peer: ConsumerCase) -> None:
    """It asks for a versioned capsule, because only that one says what is read-only."""
    producer = peer_of()
    peer.take(producer)
    asked = [call.get("max_version") for call in producer.calls]
    if not asked:
        raise NotApplicableError("it calls no `__dlpack__`")
    need(any(isinstance(v, tuple) and v >= (1, 0) for v in asked), f"max_version was {asked}")


@rule("consumer", "should", FROM)
def asks_once(peer: ConsumerCase) -> None:
    """It calls `__dlpack__` once if that works, because an export may be expensive."""
    producer = peer_of()
    peer.take(producer)
    need(len(producer.calls) <= 1, f"{len(producer.calls)} calls")


@rule("consumer", "must", METHOD)
def passes_no_stream_on_cpu(peer: ConsumerCase) -> None:
    """It passes no stream to a CPU producer, because that must refuse one."""
    producer = peer_of()
    peer.take(producer)
    streams = [call["stream"] for call in producer.calls if call.get("stream") is not None]
    need(not streams, f"stream was {streams}")


class _Refusing(faults.RaisingProducer):
    pass


@rule("consumer", "should", METHOD)
def errors_pass(peer: ConsumerCase) -> None:
    """A producer's BufferError reaches the caller, because it says why."""
    producer = _Refusing(aligned(values()))
    try:
        peer.from_dlpack(producer)
    except BufferError:
        return
    except Exception as error:  # noqa: BLE001
        raise BrokenError(f"it raised {text(error)}") from None
    raise BrokenError("it returned a result")


@rule("consumer", "should", METHOD)
def refusals_are_final(peer: ConsumerCase) -> None:
    """It does not ask again after a BufferError, as only a TypeError says that a keyword is new."""
    producer = _Refusing(aligned(values()))
    try:
        peer.from_dlpack(producer)
    except Exception:  # noqa: BLE001
        need(len(producer.calls) <= 1, f"{len(producer.calls)} calls")


@rule("consumer", "must", FROM)
def none_is_refused(peer: ConsumerCase) -> None:
    """A producer that returns None is refused with an exception, as it is a frequent mistake."""
    peer.refuses(faults.NoneProducer(aligned(values())), "None for a capsule")


# ---- ownership -----------------------------------------------------------------------------------


class Watched(Producer):
    """Keeps the capsules that it gave, so that their names can be read."""

    def __init__(self, what: Any, *, name: bytes | None = None) -> None:
        super().__init__(what)
        self.given: list[Any] = []
        self.name = name

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        self.calls.append({"max_version": max_version})
        capsule = self.capsule(versioned=max_version is not None and max_version[0] >= 1)
        if self.name is not None:
            faults._set_name(capsule, self.name)
        self.given.append(capsule)
        return capsule


@rule("consumer", "must", CAPSULE)
def capsule_is_renamed(peer: ConsumerCase) -> None:
    """The capsule has its used name after the import, because a second consumer must see that."""
    producer = Watched(aligned(values()))
    result = peer.take(producer)
    names = [faults.capsule_name(each) for each in producer.given]
    del result
    if not names:
        raise NotApplicableError("it calls no `__dlpack__`")
    need(names[-1].startswith("used_"), f"its name is {names[-1]!r}")


@rule("consumer", "must", CAPSULE)
def used_capsule_refused(peer: ConsumerCase) -> None:
    """A consumed capsule is refused, because its memory belongs to another consumer."""
    producer = Watched(aligned(values()), name=faults.USED_VERSIONED)
    peer.refuses(producer, "a capsule named used_dltensor_versioned")


@rule("consumer", "must", CAPSULE)
def unknown_name_refused(peer: ConsumerCase) -> None:
    """A capsule of another name is refused, because what it holds is unknown."""
    peer.refuses(Watched(aligned(values()), name=b"arrow_array"), "a capsule named arrow_array")


@rule("consumer", "must", MANAGED)
def deleter_exactly_once(peer: ConsumerCase) -> None:
    """The deleter is called exactly once, because less leaks and more crashes."""
    producer = peer_of()
    result = peer.take(producer)
    del result
    lent = len(producer.loans)
    calls = settled(producer, lent)
    time.sleep(0.01)
    calls = producer.deleted
    need(calls == lent, f"{calls} calls of {lent} deleters after the result was dropped")


@rule("consumer", "must", MANAGED)
def deleter_not_early(peer: ConsumerCase) -> None:
    """The deleter is not called while the shared memory is in use, as the producer frees it."""
    array = aligned(values())
    producer = ModernProducer(describe(array))
    result = peer.take(producer)
    if address(result) != array.ctypes.data:
        raise NotApplicableError("it copies")
    gc.collect()
    calls = producer.deleted
    del result
    need(calls < len(producer.loans), "it was called while the result was alive")


@rule("consumer", "must", MANAGED)
def deleter_after_refusal(peer: ConsumerCase) -> None:
    """A refused tensor is released exactly once, as consumer and capsule must agree who does."""
    for what in (
        {"dtype": (99, 32, 1)},
        {"device": (4, 0)},
        {"device": (2, 99)},
        {"strides": (-3, 1), "byte_offset": 12},
    ):
        producer = counted_peer(**what)
        try:
            _kept.append(peer.from_dlpack(producer))
            continue
        except Exception:  # noqa: BLE001
            gc.collect()
        lent = len(producer.loans)
        settled(producer, lent)
        time.sleep(0.01)
        need(producer.deleted == lent, f"{producer.deleted} calls of {lent} deleters for {what}")


@rule("consumer", "must", MANAGED)
def null_deleter(peer: ConsumerCase) -> None:
    """A NULL deleter is not called, because the standard allows it."""
    producer = peer_of(has_deleter=False)
    result = peer.take(producer)
    _kept.append(producer)  # nothing else keeps the struct
    del result
    gc.collect()


@rule("consumer", "must", MANAGED)
def deleter_may_be_slow(peer: ConsumerCase) -> None:
    """A deleter may take its time and let other threads run, because it may wait for the GIL."""
    producer = peer_of(on_delete=faults.slow(0.05))
    result = peer.take(producer)
    del result
    lent = len(producer.loans)
    need(settled(producer, lent) == lent, "the deleter was not called exactly once")


@rule("consumer", "must", MANAGED)
def dropped_on_another_thread(peer: ConsumerCase) -> None:
    """The result may be dropped on another thread, because tensors travel."""
    producer = peer_of()
    box = [peer.take(producer)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    lent = len(producer.loans)
    calls = settled(producer, lent)
    need(calls == lent, f"{calls} calls of {lent} deleters")


@rule("consumer", "must", MANAGED)
def memory_outlives_the_producer(peer: ConsumerCase) -> None:
    """The result is valid after the producer object is gone, because the deleter alone ends it."""
    producer = peer_of()
    result = peer.take(producer)
    loans = list(producer.loans)
    del producer
    gc.collect()
    rubbish = [np.full((2, 3), 77, "float32") for _ in range(200)]
    got = seen(result)
    del rubbish, loans
    need(same(got, values()), f"{got.tolist()} instead of {values().tolist()}")


@rule("consumer", "must", MANAGED)
def imports_leak_nothing(peer: ConsumerCase) -> None:
    """Imports leave no memory behind, because programs make millions."""
    block = aligned(values())

    def work() -> None:
        peer.from_dlpack(block)

    peer.take(block)
    each = growth(work, 400)
    need(each < 24, f"each import leaves {each:.0f} bytes")


@rule("consumer", "must", MANAGED, alone=True)
def alive_at_exit(peer: ConsumerCase) -> None:
    """A result that is alive when Python ends does no harm, because modules keep such."""
    _kept.append(peer.take(aligned(values())))


# ---- layouts -------------------------------------------------------------------------------------


@rule("consumer", "must", TENSOR)
def honours_byte_offset(peer: ConsumerCase) -> None:
    """byte_offset is added to data, or refused, because the first element is there."""
    array = aligned(values((4, 3)))
    what = describe(array).but(shape=(3, 3), byte_offset=12)
    agrees(peer, ModernProducer(what), array[1:])


@rule("consumer", "must", TENSOR)
def honours_negative_strides(peer: ConsumerCase) -> None:
    """Negative strides are followed or refused, because NumPy makes them."""
    array = aligned(values((4,)))
    agrees(peer, ModernProducer(describe(array[::-1])), array[::-1])


@rule("consumer", "must", TENSOR)
def honours_gaps(peer: ConsumerCase) -> None:
    """Strides with gaps are followed or refused, because views have them."""
    array = aligned(values((2, 6)))
    agrees(peer, ModernProducer(describe(array[:, ::2])), array[:, ::2])


@rule("consumer", "must", TENSOR)
def honours_transposed(peer: ConsumerCase) -> None:
    """Column-major strides are followed or refused, because transposed views have them."""
    array = aligned(values())
    agrees(peer, ModernProducer(describe(array.T)), array.T)


@rule("consumer", "must", TENSOR)
def honours_zero_strides(peer: ConsumerCase) -> None:
    """Strides of 0 are followed or refused, because broadcast views have them."""
    array = np.broadcast_to(aligned(values((3,))), (2, 3))
    agrees(peer, ModernProducer(describe(array, flags=0)), array)


@rule("consumer", "must", TENSOR)
def takes_null_strides(peer: ConsumerCase) -> None:
    """NULL strides mean compact row-major, because producers before DLPack 1.2 say it so."""
    array = aligned(values())
    got = seen(peer.from_dlpack(ModernProducer(describe(array, strides=None, version=(1, 1)))))
    need(same(got, values()), f"{got.tolist()} instead of {values().tolist()}")


@rule("consumer", "must", TENSOR)
def takes_null_data_of_nothing(peer: ConsumerCase) -> None:
    """NULL data is fine where there are no elements, and the deleter is still called."""
    producer = ModernProducer(Description(shape=(0, 3), strides=(3, 1), data=None))
    result = peer.take(producer)
    shape = tuple(getattr(result, "shape", (0, 3)))
    need(tuple(map(int, shape)) == (0, 3), f"the shape is {shape}")
    del result
    lent = len(producer.loans)
    calls = settled(producer, lent)
    need(calls == lent, f"{calls} calls of {lent} deleters")


@rule("consumer", "must", TENSOR)
def takes_no_dimension(peer: ConsumerCase) -> None:
    """Ndim 0 is one element, also with NULL for shape and strides, because producers say it so."""
    array = aligned(np.array(7, "float32"))
    what = describe(array).but(shape=None, strides=None, ndim=0)
    got = seen(peer.from_dlpack(ModernProducer(what)))
    need(got.shape == () and got == 7, f"{got.tolist()} of shape {got.shape} instead of 7")


@rule("consumer", "must", TENSOR)
def ignores_strides_of_one(peer: ConsumerCase) -> None:
    """The stride of a dimension of extent 1 has no meaning, because nothing is skipped."""
    array = aligned(values((1, 3)))
    agrees(peer, ModernProducer(describe(array, strides=(12345, 1))), array)


@rule("consumer", "should", TENSOR)
def takes_any_alignment(peer: ConsumerCase) -> None:
    """Data aligned to its elements only can be used in an operation, as most have that."""
    array = aligned(values((64,)), offset=16)
    result = peer.take(ModernProducer(describe(array)))
    try:
        total = result + result
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"it does not add: {text(error)}") from None
    need(same(seen(total), array + array), "the sum is wrong")


# ---- dtypes, versions, flags, devices ------------------------------------------------------------


@rule("consumer", "must", TENSOR)
def dtype_is_kept(peer: ConsumerCase) -> None:
    """Every dtype arrives as itself or is refused, because a narrower one loses values."""
    wrong = []
    for name in faults.DTYPES:
        array = aligned(values((3,), name))
        try:
            result = peer.take(ModernProducer(describe(array)))
            got = seen(result)
        except NotApplicableError:
            continue
        if got.dtype != array.dtype:
            wrong.append(f"{name} became {got.dtype}")
    need(not wrong, ", ".join(wrong))


@rule("consumer", "must", TENSOR)
def honours_lanes(peer: ConsumerCase) -> None:
    """Lanes are refused or kept, because the elements are vectors."""
    array = aligned(values((4,)))
    producer = ModernProducer(describe(array, shape=(2,), dtype=(2, 32, 2)))
    result = peer.take(producer)
    got = seen(result)
    need(got.size * got.itemsize >= 16, f"float32x2 of shape (2,) became {got.dtype} {got.shape}")


@rule("consumer", "must", TENSOR)
def zero_lanes_refused(peer: ConsumerCase) -> None:
    """Lanes of 0 are refused, because such elements have no size."""
    peer.refuses(peer_of(dtype=(2, 32, 0)), "a dtype with 0 lanes")


@rule("consumer", "must", TENSOR)
def unknown_dtype_refused(peer: ConsumerCase) -> None:
    """An unknown type code is refused or kept as such, because nobody knows what it means."""
    wanted = (99, 32, 1)
    try:
        result = peer.from_dlpack(peer_of(dtype=wanted))
    except Exception:  # noqa: BLE001
        return
    _kept.append(result)
    need(hasattr(result, "__dlpack__"), "it took type code 99")
    found = faults.Consumer(newest(result))
    dtype = found.dtype
    found.release()
    need(dtype == wanted, f"it took type code 99, and gives it out as {dtype}")


@rule("consumer", "must", TENSOR)
def odd_bits_refused(peer: ConsumerCase) -> None:
    """A float of 24 bits is refused, because rounding up its size reads beyond the end."""
    peer.refuses(peer_of(dtype=(2, 24, 1)), "a float of 24 bits")


def needs_versioned(producer: ModernProducer) -> None:
    """Nothing can be said of versions where the last capsule that was taken has none."""
    if not (producer.loans and isinstance(producer.loans[-1].struct, Versioned)):
        raise NotApplicableError("it takes legacy capsules only")


@rule("consumer", "must", MANAGED)
def other_major_refused(peer: ConsumerCase) -> None:
    """Another major version is refused, because the rest of the struct is unknown."""
    producer = peer_of(version=(2, 0))
    try:
        peer.refuses(producer, "a capsule of version 2.0")
    finally:
        needs_versioned(producer)


@rule("consumer", "must", MANAGED)
def other_major_released(peer: ConsumerCase) -> None:
    """A refused major version is released exactly once, as its deleter is where it always was."""
    producer = counted_peer(version=(2, 0))
    try:
        peer.from_dlpack(producer)
    except Exception:  # noqa: BLE001
        gc.collect()
    else:
        raise NotApplicableError("it is not refused")
    needs_versioned(producer)
    lent = len(producer.loans)
    calls = settled(producer, lent)
    need(calls == lent, f"{calls} calls of {lent} deleters")


@rule("consumer", "must", MANAGED)
def newer_minor_accepted(peer: ConsumerCase) -> None:
    """A newer minor version is accepted, because minor versions are compatible."""
    producer = peer_of(version=(1, 99))
    got = seen(peer.from_dlpack(producer))
    need(same(got, values()), "the values are wrong")


@rule("consumer", "must", MANAGED)
def read_only_is_honoured(peer: ConsumerCase) -> None:
    """READ_ONLY memory cannot be written through the result, because it may be mapped so."""
    array = aligned(values())
    result = peer.take(ModernProducer(describe(array, flags=faults.READ_ONLY)))
    if address(result) != array.ctypes.data:
        raise NotApplicableError("it copies")
    try:
        result[0] = result[1]
    except Exception:  # noqa: BLE001
        return
    need(same(array, values()), "it wrote into read-only memory")


@rule("consumer", "must", TENSOR)
def unknown_device_refused(peer: ConsumerCase) -> None:
    """An unknown device type is refused or kept as such, as its pointer means nothing here."""
    keeps_device(peer, peer_of(device=(99, 0)), "device type 99", (99, 0))


def keeps_device(
    peer: ConsumerCase, producer: Any, what: str, device: tuple[int, int] = (2, 99)
) -> None:
    """Demand that the memory of a device is refused, or passed on as what it is."""
    try:
        result = peer.from_dlpack(producer)
    except Exception:  # noqa: BLE001
        return
    _kept.append(result)
    tell = getattr(result, "__dlpack_device__", None)
    need(tell is not None and tuple(map(int, tell())) == device, f"it took {what}")


@rule("consumer", "must", TENSOR)
def missing_device_refused(peer: ConsumerCase) -> None:
    """A GPU that is not there is refused or kept as such, as its pointer means nothing here."""
    keeps_device(peer, peer_of(device=(2, 99)), "memory of CUDA device 99 for another")


@rule("consumer", "must", TENSOR)
def capsule_tells_the_device(peer: ConsumerCase) -> None:
    """The capsule's device counts, not only `__dlpack_device__`, as the pointer belongs to it."""
    producer = ModernProducer(describe(aligned(values()), device=(2, 99)), device=(1, 0))
    keeps_device(peer, producer, "memory of CUDA device 99 as memory of the CPU")


# ---- malformed structs ---------------------------------------------------------------------------


@rule("consumer", "hazard", TENSOR)
def negative_ndim_refused(peer: ConsumerCase) -> None:
    """A negative ndim is refused, because loops over it run wild."""
    peer.refuses(peer_of(ndim=-1), "ndim -1")


@rule("consumer", "hazard", TENSOR)
def negative_extent_refused(peer: ConsumerCase) -> None:
    """A negative extent is refused, because sizes computed from it are huge."""
    peer.refuses(peer_of(shape=(-2, 3)), "shape (-2, 3)")


@rule("consumer", "hazard", TENSOR)
def overflowing_shape_refused(peer: ConsumerCase) -> None:
    """A shape whose product overflows is refused, because the size comes out small."""
    shape = (2**40, 2**40)
    peer.refuses(peer_of(shape=shape, strides=(2**40, 1)), "shape (2**40, 2**40)")


@rule("consumer", "hazard", TENSOR)
def null_data_refused(peer: ConsumerCase) -> None:
    """NULL data with elements is refused, because the first read crashes."""
    peer.refuses(peer_of(data=None), "NULL data of 6 elements")


@rule("consumer", "hazard", TENSOR)
def null_shape_refused(peer: ConsumerCase) -> None:
    """A NULL shape with dimensions is refused, because the first look at it crashes."""
    peer.refuses(peer_of(shape=None, strides=None, ndim=1), "ndim 1 with a NULL shape")


# ---- sharing and copies --------------------------------------------------------------------------


@rule("consumer", "should", FROM)
def memory_is_shared(peer: ConsumerCase) -> None:
    """The result shares the producer's memory where it can, because that is what DLPack is for."""
    array = aligned(values((32, 32)))
    result = peer.take(ModernProducer(describe(array)))
    need(address(result) == array.ctypes.data, "the result is elsewhere")


def with_copy(peer: ConsumerCase, producer: Any, copy: bool) -> Any:
    """Return the result for `copy=`."""
    try:
        return peer.from_dlpack(producer, copy=copy)
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"copy={copy}: {text(error)}") from None


class _Copying(ModernProducer):
    """Copies when asked, as the standard demands."""

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        own = self.what
        if copy:
            array = aligned(values((32, 32)))
            self.what = describe(array, flags=faults.IS_COPIED)
        try:
            return super().__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)
        finally:
            self.what = own


@rule("consumer", "must", FROM)
def copy_true_copies(peer: ConsumerCase) -> None:
    """`copy=True` gives memory of its own, because the caller will write into it."""
    array = aligned(values((32, 32)))
    result = with_copy(peer, _Copying(describe(array)), True)
    need(address(result) != array.ctypes.data, "the memory is shared")


@rule("consumer", "must", FROM)
def copy_false_shares(peer: ConsumerCase) -> None:
    """`copy=False` shares or is refused, because the caller counts on it."""
    array = aligned(values((32, 32)))
    result = with_copy(peer, _Copying(describe(array)), False)
    need(address(result) == array.ctypes.data, "the memory was copied")
