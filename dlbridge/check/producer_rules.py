"""The rules for producers: what `__dlpack__`, `__dlpack_device__` and their capsules must be."""

from __future__ import annotations

import ctypes
import gc
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dlbridge.check import faults
from dlbridge.check.faults import Consumer
from dlbridge.check.rules import BrokenError, NotApplicableError, need, rule
from dlbridge.device import DeviceType
from dlbridge.exchange.exchange import from_dlpack

VERSION = (1, 3)
HOST = (1, 3, 11, 20)  # whose memory the CPU reads: CPU, CUDAHost, ROCMHost, TPUHost
METHOD, DEVICE = "Python specification, __dlpack__", "Python specification, __dlpack_device__"
CAPSULE = "Python specification, capsules"
MANAGED, TENSOR = "dlpack.h, DLManagedTensorVersioned", "dlpack.h, DLTensor"
TABLE = "dlpack.h, DLPackExchangeAPI"
destructor_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyCapsule_GetDestructor", ctypes.pythonapi)
)


def native_destructor(versioned: bool) -> Any:
    """Return a destructor in C: it calls the deleter of a capsule that has its first name."""
    own = from_dlpack(np.zeros(1))
    return destructor_of(own.__dlpack__(max_version=(1, 0) if versioned else None))


class ProducerCase:
    """A producer's factory, and safe ways to look at what it makes.

    The factory takes a NumPy array, and returns a tensor with its values; or takes nothing.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.takes_array = _takes_an_argument(make)

    def new(self) -> Any:
        """Return a tensor: float32, of shape (2, 3), with the values 0 to 5 if it can be told."""
        return self.make(values()) if self.takes_array else self.make()

    def like(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a tensor with these values."""
        if not self.takes_array:
            raise NotApplicableError("the factory takes no array")
        try:
            return self.make(array)
        except Exception as error:  # noqa: BLE001
            raise NotApplicableError(f"it makes no such tensor: {text(error)}") from None


def _takes_an_argument(make: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters
    )


def values(shape: tuple[int, ...] = (2, 3), dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Return 0, 1, 2, ... in this shape."""
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


def text(error: BaseException) -> str:
    """Return the type and the first line of an exception."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def newest(x: Any, **keywords: Any) -> Any:
    """Return a capsule, versioned where the tensor gives one."""
    try:
        try:
            return x.__dlpack__(max_version=VERSION, **keywords)
        except TypeError:
            return x.__dlpack__(**keywords)
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"there is no capsule: {text(error)}") from None


def consume(capsule: Any) -> Consumer:
    """Take a capsule."""
    try:
        return Consumer(capsule)
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"there is no capsule to take: {text(error)}") from None


@contextmanager
def taken(x: Any, **keywords: Any) -> Iterator[Consumer]:
    """Take a capsule of `x` and release it at the end."""
    with held(newest(x, **keywords)) as found:
        yield found


@contextmanager
def held(capsule: Any) -> Iterator[Consumer]:
    """Take this capsule and release it at the end."""
    found = consume(capsule)
    try:
        yield found
    finally:
        found.release()


def read(found: Consumer) -> np.ndarray[Any, Any]:
    """Return the elements, if the CPU can read them."""
    if found.device[0] not in HOST:
        raise NotApplicableError(f"its memory is on device {found.device}")
    if found.dtype not in faults.DTYPES.values():
        raise NotApplicableError(f"NumPy has no dtype {found.dtype}")
    if not found.data and found.shape and 0 not in found.shape:
        raise NotApplicableError("its data is NULL")
    return found.values()


def start(found: Consumer) -> int:
    """Return the address of the first element."""
    return int(found.data + found.byte_offset)


def accepts(x: Any, **keywords: Any) -> Any:
    """Return the capsule for these keywords, or nothing can be said."""
    try:
        return x.__dlpack__(**keywords)
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"refused: {text(error)}") from None


def same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Return whether shapes and values are equal; dtypes may differ."""
    return found.shape == expected.shape and bool((found == expected).all())


# ---- __dlpack_device__ ---------------------------------------------------------------------------


def device_of(x: Any) -> tuple[int, int]:
    """Return the device, or nothing can be said."""
    try:
        kind, number = x.__dlpack_device__()
        return int(kind), int(number)
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"no device: {text(error)}") from None


@rule("producer", "must", DEVICE)
def device_pair(peer: ProducerCase) -> None:
    """`__dlpack_device__` returns a tuple of two integers, as consumers unpack and compare it."""
    found = peer.new().__dlpack_device__()
    fine = isinstance(found, tuple) and len(found) == 2
    need(fine and all(isinstance(n, int) for n in found), f"it returned {found!r}")


@rule("producer", "must", DEVICE)
def device_known(peer: ProducerCase) -> None:
    """The device type is one of the standard, because a consumer must refuse any other."""
    kind, _ = device_of(peer.new())
    need(kind in {int(each) for each in DeviceType}, f"device type {kind} has no meaning")


@rule("producer", "must", DEVICE)
def device_agrees(peer: ProducerCase) -> None:
    """The capsule is on the device that `__dlpack_device__` names, as consumers choose by it."""
    x = peer.new()
    said = device_of(x)
    with taken(x) as found:
        need(found.device == said, f"__dlpack_device__ says {said}, the capsule {found.device}")


@rule("producer", "must", DEVICE)
def device_stays(peer: ProducerCase) -> None:
    """`__dlpack_device__` says the same after an export, because consumers ask before and after."""
    x = peer.new()
    before = device_of(x)
    with taken(x):
        pass
    after = device_of(x)
    need(before == after, f"{before} before the export, {after} after it")


# ---- the call ------------------------------------------------------------------------------------


@rule("producer", "must", METHOD)
def call_without_keywords(peer: ProducerCase) -> None:
    """`__dlpack__()` works without a keyword, because older consumers pass none."""
    peer.new().__dlpack__()


@rule("producer", "must", METHOD)
def keyword_stream(peer: ProducerCase) -> None:
    """`stream=None` is accepted, because consumers of every version pass it."""
    peer.new().__dlpack__(stream=None)


@rule("producer", "must", METHOD)
def keyword_max_version(peer: ProducerCase) -> None:
    """`max_version` is accepted, because a consumer negotiates the version by it."""
    peer.new().__dlpack__(max_version=VERSION)


@rule("producer", "must", METHOD)
def keyword_dl_device(peer: ProducerCase) -> None:
    """`dl_device=None` is accepted, because it is the default."""
    peer.new().__dlpack__(dl_device=None)


@rule("producer", "must", METHOD)
def keyword_copy(peer: ProducerCase) -> None:
    """`copy=None` is accepted, because it is the default."""
    peer.new().__dlpack__(copy=None)


@rule("producer", "should", METHOD)
def keyword_unknown(peer: ProducerCase) -> None:
    """An unknown keyword is a TypeError, because a consumer must learn that it was not heeded."""
    x = peer.new()
    try:
        x.__dlpack__(no_such_keyword=1)
    except TypeError:
        return
    except Exception as error:  # noqa: BLE001
        raise BrokenError(f"it raised {text(error)}") from None
    raise BrokenError("it was accepted")


@rule("producer", "should", METHOD)
def keywords_only(peer: ProducerCase) -> None:
    """Arguments are keywords only, as the signature of the standard has them."""
    x = peer.new()
    try:
        x.__dlpack__(None)
    except TypeError:
        return
    raise BrokenError("a positional argument was accepted")


@rule("producer", "must", METHOD)
def call_is_pure(peer: ProducerCase) -> None:
    """An export leaves the values as they were, because consumers may call `__dlpack__` again."""
    x = peer.new()
    with taken(x) as first:
        before = read(first)
    if peer.takes_array and not same(before, values()):
        raise NotApplicableError("the first export has other values already")
    with taken(x) as second:
        after = read(second)
    need(same(before, after), "the second export has other values")


# ---- versions ------------------------------------------------------------------------------------


def kind_of(capsule: Any) -> str:
    """Return the name of the capsule."""
    return str(faults.capsule_name(capsule))


@rule("producer", "must", METHOD)
def legacy_by_default(peer: ProducerCase) -> None:
    """Without `max_version` the capsule is a legacy one, because the consumer may know no other."""
    capsule = accepts(peer.new())
    need(kind_of(capsule) != "dltensor_versioned", "the capsule is versioned")


@rule("producer", "must", METHOD)
def legacy_for_old_versions(peer: ProducerCase) -> None:
    """`max_version=(0, 8)` gives a legacy capsule, because the consumer knows no other."""
    x = peer.new()
    try:
        capsule = x.__dlpack__(max_version=(0, 8))
    except TypeError as error:
        raise NotApplicableError(text(error)) from None
    need(kind_of(capsule) != "dltensor_versioned", "the capsule is versioned")


@rule("producer", "should", METHOD)
def versioned_on_request(peer: ProducerCase) -> None:
    """`max_version=(1, 3)` gives a versioned capsule, because only that one has flags."""
    capsule = accepts(peer.new(), max_version=VERSION)
    need(kind_of(capsule) != "dltensor", "the capsule is a legacy one")


@rule("producer", "must", METHOD)
def version_of_the_future(peer: ProducerCase) -> None:
    """`max_version=(9, 0)` gives a capsule that the producer knows, as it is only a maximum."""
    x = peer.new()
    try:
        with held(x.__dlpack__(max_version=(9, 0))) as found:
            need(found.version is None or found.version[0] == 1, f"version {found.version}")
    except TypeError as error:
        raise NotApplicableError(text(error)) from None


@rule("producer", "must", MANAGED)
def version_not_above_request(peer: ProducerCase) -> None:
    """The major version is 1 for `max_version=(1, 0)`, as the consumer knows no other layout."""
    with held(accepts(peer.new(), max_version=(1, 0))) as found:
        major = found.version[0] if found.version else 1
        need(major == 1, f"the capsule has version {found.version}")


# ---- capsules ------------------------------------------------------------------------------------


@rule("producer", "must", CAPSULE)
def capsule_name(peer: ProducerCase) -> None:
    """The capsule has one of the two names of fresh capsules, because consumers know no other."""
    x = peer.new()
    try:
        capsule = x.__dlpack__(max_version=VERSION)
    except TypeError:
        capsule = accepts(x)
    try:
        found = kind_of(capsule)
    except (ValueError, TypeError, AttributeError) as error:
        raise BrokenError(
            f"{type(capsule).__name__} is not a capsule with a name: {text(error)}"
        ) from None
    need(found in ("dltensor", "dltensor_versioned"), f"its name is {found!r}")


@rule("producer", "must", CAPSULE)
def capsule_destructor(peer: ProducerCase) -> None:
    """The capsule has a destructor, because one that nobody takes must release the tensor."""
    capsule = newest(peer.new())
    try:
        there = destructor_of(capsule)
    except ValueError:
        raise NotApplicableError("it is not a capsule") from None
    need(there, "there is none: unconsumed capsules leak")


@rule("producer", "must", CAPSULE)
def capsule_unused_is_released(peer: ProducerCase) -> None:
    """Dropping a capsule that nobody took lets go of the tensor, because its destructor must."""
    x = peer.new()
    capsule = newest(x)
    if not faults._get_name(capsule) or not destructor_of(capsule):
        raise NotApplicableError("there is no destructor")
    del capsule
    before = _references(x)
    for _ in range(8):
        newest(x)
    gc.collect()
    more = _references(x) - before
    need(more < 8, f"{more} references to the tensor are left after 8 capsules were dropped")


@rule("producer", "must", CAPSULE)
def capsule_used_is_not_released(peer: ProducerCase) -> None:
    """The destructor leaves a consumed capsule alone, because its consumer calls the deleter."""
    capsule = newest(peer.new())
    found = consume(capsule)
    calls = count_calls(found)
    del capsule
    gc.collect()
    early = calls[0]
    if not early:
        found.release()
    need(early == 0, "the destructor of a consumed capsule called the deleter")


@rule("producer", "must", CAPSULE)
def capsules_are_new(peer: ProducerCase) -> None:
    """Every call gives a managed tensor of its own, because each consumer deletes its own."""
    x = peer.new()
    first, second = newest(x), newest(x)
    try:
        fresh = faults.capsule_address(first) != faults.capsule_address(second)
    except (ValueError, TypeError, AttributeError) as error:
        raise NotApplicableError(text(error)) from None
    need(fresh, "two capsules hold the same managed tensor")


def count_calls(found: Consumer) -> list[int]:
    """Count the calls of the deleter from now on; the producer's own is called by the first."""
    struct = found.struct_type.from_address(found.address)
    if not struct.deleter:
        raise NotApplicableError("the deleter is NULL")
    own, calls = faults.Deleter(struct.deleter), [0]

    def counted(address: int) -> None:
        calls[0] += 1
        if calls[0] == 1:
            own(address)

    function = faults.Deleter(counted)
    _counting.append(function)
    struct.deleter = ctypes.cast(function, ctypes.c_void_p).value
    return calls


_counting: list[object] = []


def _references(x: Any) -> int:
    """Return how many references `x` has, besides those of the calls here."""
    return sys.getrefcount(x)


# ---- the deleter ---------------------------------------------------------------------------------


@rule("producer", "hazard", MANAGED)
def deleter_present(peer: ProducerCase) -> None:
    """There is a deleter, because several consumers crash at NULL though it is allowed."""
    with taken(peer.new()) as found:
        need(found.has_deleter, "the deleter is NULL")


@rule("producer", "must", MANAGED)
def deleter_releases(peer: ProducerCase) -> None:
    """The deleter lets go of the tensor, because nothing else makes the producer do so."""
    x = peer.new()
    with taken(x) as found:
        if not found.has_deleter:
            raise NotApplicableError("the deleter is NULL")
    before = _references(x)
    for _ in range(8):
        with taken(x):
            pass
    gc.collect()
    more = _references(x) - before
    need(more < 8, f"{more} references to the tensor are left after 8 deleters")


@rule("producer", "must", MANAGED)
def export_keeps_the_data(peer: ProducerCase) -> None:
    """The data lives until the deleter is called, because the consumer may be its last user."""
    x = peer.new()
    found = consume(newest(x))
    if found.device[0] in HOST and found.data and 0 not in (found.shape or ()):
        size = max(1, found.dtype[1] * found.dtype[2] // 8)
        nbytes = size * math.prod(found.shape or ())
        first = ctypes.string_at(start(found), size)  # not by NumPy, which might use freed memory
        rubbish = [np.full(nbytes, 77, "uint8") for _ in range(200)]
        kept = ctypes.string_at(start(found), size) == first
        del rubbish
        if not kept:
            raise BrokenError("the values changed right after the export")
    before = read(found)
    del x
    gc.collect()
    rubbish = [np.full(before.shape, 77, before.dtype) for _ in range(200)]
    now = (found.shape, found.values())
    found.release()
    del rubbish
    need(same(before, now[1]), "the values changed when the tensor was dropped")


@rule("producer", "must", MANAGED)
def struct_survives_the_capsule(peer: ProducerCase) -> None:
    """The struct, its shape and strides live until the deleter, as the capsule may go first."""
    x = peer.new()
    found = consume(newest(x))
    before = (found.shape, found.strides, found.data)
    gc.collect()
    rubbish = [(ctypes.c_int64 * 2)(7, 7) for _ in range(200)]
    found._read(found.struct_type.from_address(found.address))
    after = (found.shape, found.strides, found.data)
    found.release()
    del rubbish
    need(before == after, f"{before} became {after}")


@rule("producer", "must", MANAGED)
def deleter_on_any_thread(peer: ProducerCase) -> None:
    """The deleter may run without the GIL on a foreign thread, as frameworks do so."""
    found = consume(newest(peer.new()))
    found.release(off_thread=True)


@rule("producer", "must", MANAGED, alone=True)
def deleter_after_python(peer: ProducerCase) -> None:
    """The deleter may run after the interpreter has ended, because a consumer may live longer."""
    consume(newest(peer.new())).release_after_python()


@rule("producer", "must", CAPSULE, alone=True)
def capsule_alive_at_exit(peer: ProducerCase) -> None:
    """A capsule that is alive when Python ends does no harm, because modules keep such."""
    _counting.append(newest(peer.new()))


def allocated() -> int:
    """Return bytes that malloc has handed out."""

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

    try:
        function = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        raise NotApplicableError("this C library has no mallinfo2") from None
    function.restype = Info
    found = function()
    return int(found.e) + int(found.h)


def growth(work: Callable[[], object], times: int) -> float:
    """Return by how many bytes each call grows the memory in use: the least of three rounds.

    Garbage is collected twice, as a free-threaded Python puts off some of what a collection frees
    until the next one. A Python object counts as 48 bytes, twice the limit of the rules, so that
    objects that other code drops meanwhile hide a leak of one object for each call no more easily
    than objects that it makes feign one.
    """
    for _ in range(times // 4):
        work()
    rounds = []
    for _ in range(3):
        gc.collect()
        gc.collect()
        before = allocated(), sys.getallocatedblocks()
        for _ in range(times):
            work()
        gc.collect()
        gc.collect()
        now = allocated(), sys.getallocatedblocks()
        rounds.append(((now[0] - before[0]) + 48 * (now[1] - before[1])) / times)
    return min(rounds)


@rule("producer", "must", MANAGED)
def exports_leak_nothing(peer: ProducerCase) -> None:
    """A thousand exports leave no memory behind, because programs make millions."""
    x = peer.new()
    with taken(x) as found:
        if not found.has_deleter:
            raise NotApplicableError("the deleter is NULL")

    def export() -> None:
        with taken(x):
            pass

    each = growth(export, 400)
    need(each < 24, f"each export leaves {each:.0f} bytes")


@rule("producer", "must", METHOD)
def refusals_leak_nothing(peer: ProducerCase) -> None:
    """A refused export keeps nothing, because consumers try and fall back."""
    x = peer.new()

    def refuse() -> bool:
        try:
            x.__dlpack__(max_version=VERSION, dl_device=(2, 77))
        except Exception:  # noqa: BLE001
            return True
        return False

    if not refuse():
        raise NotApplicableError("a device that is not there was not refused")
    before = _references(x)
    for _ in range(8):
        refuse()
    gc.collect()
    more = _references(x) - before
    need(more < 8, f"{more} references to the tensor are left after 8 refusals")


@rule("producer", "should", METHOD)
def exports_on_many_threads(peer: ProducerCase) -> None:
    """Threads may export one tensor at once, because consumers do not take turns."""
    x = peer.new()
    with taken(x):
        pass
    with taken(x) as found:  # a capsule that is given again cannot be taken again
        expected = (found.shape, found.dtype)
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(50):
                with taken(x) as found:
                    if (found.shape, found.dtype) != expected:
                        wrong.append((found.shape, found.dtype))
        except Exception as error:  # noqa: BLE001
            wrong.append(text(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    need(not wrong, f"an export on another thread is different: {wrong[:1]}")


# ---- the view ------------------------------------------------------------------------------------


@rule("producer", "must", TENSOR)
def shape_agrees(peer: ProducerCase) -> None:
    """The shape is that of the tensor, because a consumer has no other source."""
    x = peer.new()
    if not (peer.takes_array or hasattr(x, "shape")):
        raise NotApplicableError("its shape is not known")
    with taken(x) as found:
        expected = tuple(map(int, x.shape)) if hasattr(x, "shape") else (2, 3)
        need((found.shape or ()) == expected, f"the capsule says {found.shape}, not {expected}")


@rule("producer", "must", TENSOR)
def values_agree(peer: ProducerCase) -> None:
    """The elements are where data, byte_offset and strides say, because consumers read there."""
    x = peer.like(values())
    with taken(x) as found:
        if found.shape != (2, 3):
            raise NotApplicableError("the shape is different")
        size, strides = found.dtype[1] // 8, found.strides
        if size > 1 and strides == tuple(size * step for step in faults.row_major((2, 3))):
            # Those of bytes lead out of the memory, so the elements are first read as if packed.
            found.strides = None
            packed = read(found)
            found.strides = strides
            need(
                not same(packed, values()),
                f"strides are {strides}, in bytes? They count elements, and these are packed",
            )
        got = read(found)
        need(same(got, values()), f"{got.tolist()} instead of {values().tolist()}")


@rule("producer", "must", TENSOR)
def strides_present(peer: ProducerCase) -> None:
    """Strides are not NULL where there are dimensions, as DLPack 1.2 demands."""
    with taken(peer.new()) as found:
        if found.ndim == 0:
            raise NotApplicableError("the tensor has no dimension")
        need(found.strides is not None, "strides is NULL")


@rule("producer", "must", TENSOR)
def dtype_agrees(peer: ProducerCase) -> None:
    """The dtype is the tensor's own, because the consumer reads the elements as that."""
    for name, triple in faults.DTYPES.items():
        try:
            x = peer.like(values((3,), name))
            with taken(x) as found:
                own = str(getattr(x, "dtype", name)).rpartition(".")[2]
                if own == name:
                    need(found.dtype == triple, f"{name} was exported as {found.dtype}")
        except NotApplicableError:
            if not peer.takes_array:
                raise


@rule("producer", "must", TENSOR)
def lanes_are_one(peer: ProducerCase) -> None:
    """Lanes are 1 for a plain dtype, because several consumers ignore another number."""
    with taken(peer.new()) as found:
        need(found.dtype[2] == 1, f"lanes is {found.dtype[2]}")


@rule("producer", "hazard", TENSOR)
def byte_offset_is_zero(peer: ProducerCase) -> None:
    """byte_offset is 0, for views too, as several consumers ignore it and read wrong memory."""
    x = peer.new()
    try:
        views = [x, x[1:]]
    except Exception:  # noqa: BLE001
        views = [x]
    for view in views:
        with taken(view) as found:
            need(found.byte_offset == 0, f"byte_offset is {found.byte_offset}")


@rule("producer", "must", TENSOR)
def data_present(peer: ProducerCase) -> None:
    """Data is not NULL where there are elements, because NULL means that there are none."""
    with taken(peer.new()) as found:
        need(found.data or 0 in (found.shape or ()), "data is NULL")


@rule("producer", "must", TENSOR)
def elements_are_aligned(peer: ProducerCase) -> None:
    """The first element is aligned to its size, because C code reads it directly."""
    with taken(peer.new()) as found:
        size = max(1, found.dtype[1] * found.dtype[2] // 8)
        need(start(found) % size == 0, f"the address modulo {size} is {start(found) % size}")


# ---- layouts -------------------------------------------------------------------------------------


def check_view(peer: ProducerCase, array: np.ndarray[Any, Any], view: Callable[[Any], Any]) -> None:
    """Compare an exported view with NumPy's; a refusal by BufferError is fine."""
    x = peer.like(array)
    try:
        seen = view(x)
        expected = view(array)
        fits = tuple(map(int, seen.shape)) == expected.shape
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"there is no such view: {text(error)}") from None
    if not fits:
        raise NotApplicableError("the view is another than NumPy's")
    with taken(seen) as found:
        got = read(found)
        need(same(got, expected), f"{got.tolist()} instead of {expected.tolist()}")


@rule("producer", "must", TENSOR)
def layout_no_dimension(peer: ProducerCase) -> None:
    """A tensor without dimensions has ndim 0 and one element, because scalars are tensors."""
    check_view(peer, np.array(7, "float32"), lambda x: x)


@rule("producer", "must", TENSOR)
def layout_no_elements(peer: ProducerCase) -> None:
    """A tensor without elements keeps its shape, because the other extents still count."""
    check_view(peer, np.zeros((0, 3), "float32"), lambda x: x)


@rule("producer", "must", TENSOR)
def layout_transposed(peer: ProducerCase) -> None:
    """A transposed view has the strides that it needs, because the memory is not moved."""
    check_view(peer, values(), lambda x: x.T)


@rule("producer", "must", TENSOR)
def layout_steps(peer: ProducerCase) -> None:
    """A view of every second column has the strides that it needs, because there are gaps."""
    check_view(peer, values(), lambda x: x[:, ::2])


@rule("producer", "must", TENSOR)
def layout_reversed(peer: ProducerCase) -> None:
    """A reversed view has negative strides or is refused, because its first element is the last."""
    check_view(peer, values((4,)), lambda x: x[::-1])


@rule("producer", "must", TENSOR)
def layout_slice(peer: ProducerCase) -> None:
    """A slice begins at its own first element, because a base pointer alone reads another row."""
    check_view(peer, values((4,)), lambda x: x[1:])


# ---- flags and copies ----------------------------------------------------------------------------


def flagged(found: Consumer) -> int:
    """Return the flags of a versioned capsule."""
    if not found.versioned:
        raise NotApplicableError("a legacy capsule has no flags")
    return int(found.flags)


@rule("producer", "must", MANAGED)
def flags_known(peer: ProducerCase) -> None:
    """Only flags of the standard are set, because others will get a meaning."""
    with taken(peer.new()) as found:
        need(flagged(found) & ~7 == 0, f"flags are {found.flags:#x}")


@rule("producer", "must", MANAGED)
def flag_padded_only_below_bytes(peer: ProducerCase) -> None:
    """The flag for padded elements is only set where elements are smaller than a byte."""
    with taken(peer.new()) as found:
        padded = flagged(found) & faults.SUBBYTE_PADDED
        need(not padded or found.dtype[1] < 8, f"it is set for {found.dtype[1]} bits")


@rule("producer", "must", MANAGED)
def flag_read_only(peer: ProducerCase) -> None:
    """Data that must not be written is marked READ_ONLY, because consumers write into the rest."""
    x = peer.new()
    try:
        x[0] = x[1]
    except Exception as error:  # noqa: BLE001
        why = text(error)
    else:
        array = values()
        array.flags.writeable = False
        y = peer.like(array)
        with taken(y) as found:
            if start(found) != array.ctypes.data:
                raise NotApplicableError("it can be written")
            need(flagged(found) & 1, "an export of a read-only array has no mark")
        return
    if not hasattr(x, "__getitem__"):
        raise NotApplicableError("it has no elements by index")
    with taken(x) as found:
        mark = found.versioned and found.flags & 1
        need(mark, f"it refuses to be written ({why}), and its export has no mark")


@rule("producer", "must", MANAGED)
def read_only_never_legacy(peer: ProducerCase) -> None:
    """What is READ_ONLY is refused as a legacy capsule, because that one cannot say so."""
    array = values()
    array.flags.writeable = False
    x = peer.like(array)
    with taken(x) as found:
        if not flagged(found) & 1:
            raise NotApplicableError("it is not read-only")
    try:
        capsule = x.__dlpack__()
    except Exception:  # noqa: BLE001  (which one: `refusals_are_buffer_errors`)
        return
    need(kind_of(capsule) != "dltensor", "a legacy capsule was given")


@rule("producer", "must", METHOD)
def copy_true(peer: ProducerCase) -> None:
    """`copy=True` gives other memory, or is refused, because the consumer will write into it."""
    x = peer.new()
    with taken(x) as own, held(accepts(x, copy=True)) as found:
        need(start(own) != start(found) or not own.data, "the same memory was given")


@rule("producer", "must", METHOD)
def copy_true_versioned(peer: ProducerCase) -> None:
    """`copy=True` gives other memory in a versioned capsule too, because the rule is the same."""
    x = peer.new()
    with taken(x) as own, held(accepts(x, copy=True, max_version=VERSION)) as found:
        need(start(own) != start(found) or not own.data, "the same memory was given")


@rule("producer", "must", METHOD)
def copy_keeps_values(peer: ProducerCase) -> None:
    """A copy has the values of the tensor, because it stands for it."""
    x = peer.new()
    with taken(x) as own, held(accepts(x, copy=True)) as found:
        expected = read(own)
        if peer.takes_array and not same(expected, values()):
            raise NotApplicableError("an export without a copy has other values already")
        need(same(read(found), expected), "the copy has other values")


@rule("producer", "must", MANAGED)
def copy_true_is_marked(peer: ProducerCase) -> None:
    """A copy is marked IS_COPIED, because the consumer may then write into it."""
    x = peer.new()
    with taken(x) as own, held(accepts(x, copy=True, max_version=VERSION)) as found:
        flags = flagged(found)
        if start(own) == start(found):
            raise NotApplicableError("it is not a copy")
        need(flags & faults.IS_COPIED, "the flag IS_COPIED is not set")


@rule("producer", "must", MANAGED)
def copied_mark_is_true(peer: ProducerCase) -> None:
    """Shared memory is not marked IS_COPIED, because a write is then seen by others."""
    x = peer.new()
    with taken(x) as one, taken(x) as two:
        if start(one) != start(two):
            raise NotApplicableError("each export is a copy")
        need(not flagged(one) & faults.IS_COPIED, "the flag IS_COPIED is set")


@rule("producer", "must", METHOD)
def copy_false(peer: ProducerCase) -> None:
    """`copy=False` shares the memory or is refused, because the consumer counts on it."""
    x = peer.new()
    with taken(x) as own, held(accepts(x, copy=False)) as found:
        need(start(own) == start(found), "other memory was given")


# ---- devices and streams -------------------------------------------------------------------------


@rule("producer", "must", METHOD)
def own_device_accepted(peer: ProducerCase) -> None:
    """`dl_device` may be the tensor's own device, because consumers pass what it said."""
    x = peer.new()
    own = device_of(x)
    try:
        x.__dlpack__(dl_device=None)
    except TypeError as error:
        raise NotApplicableError(text(error)) from None
    with taken(x) as found:
        if found.device != own:
            raise NotApplicableError(f"the capsule is on device {found.device}, not on {own}")
    x.__dlpack__(dl_device=own)


def ask_elsewhere(x: Any, device: tuple[int, int]) -> Any:
    """Return the capsule for another device."""
    if device_of(x)[0] not in HOST:
        raise NotApplicableError("the tensor is not on the CPU")
    return x.__dlpack__(dl_device=device)


@rule("producer", "must", METHOD)
def refusals_are_buffer_errors(peer: ProducerCase) -> None:
    """A device that cannot be served is a BufferError, because consumers catch that one."""
    x = peer.new()
    try:
        x.__dlpack__(dl_device=None)
    except TypeError as error:
        raise NotApplicableError(text(error)) from None
    try:
        ask_elsewhere(x, (2, 77))
    except BufferError:
        return
    except NotApplicableError:
        raise
    except Exception as error:  # noqa: BLE001
        raise BrokenError(f"it raised {text(error)}") from None
    raise NotApplicableError("it was not refused")


@rule("producer", "must", METHOD)
def other_device_is_not_ignored(peer: ProducerCase) -> None:
    """A capsule for `dl_device` is on that kind of device, because its pointer is used there."""
    try:
        capsule = ask_elsewhere(peer.new(), (2, 77))
    except NotApplicableError:
        raise
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"refused: {text(error)}") from None
    with held(capsule) as found:
        need(found.device[0] == 2, f"asked for (2, 77), the capsule is on {found.device}")


@rule("producer", "must", METHOD)
def device_number_is_not_ignored(peer: ProducerCase) -> None:
    """A capsule for `dl_device` is on the device of that number, because it was asked for."""
    try:
        capsule = ask_elsewhere(peer.new(), (1, 77))
    except NotApplicableError:
        raise
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"refused: {text(error)}") from None
    with held(capsule) as found:
        need(found.device == (1, 77), f"asked for (1, 77), the capsule is on {found.device}")


@rule("producer", "must", METHOD)
def device_is_not_only_claimed(peer: ProducerCase) -> None:
    """A capsule for Metal has memory of Metal, because a relabelled CPU pointer crashes there."""
    x = peer.new()
    with taken(x) as own:
        try:
            capsule = ask_elsewhere(x, (8, 77))
        except NotApplicableError:
            raise
        except Exception as error:  # noqa: BLE001
            raise NotApplicableError(f"refused: {text(error)}") from None
        with held(capsule) as found:
            moved = found.device[0] == own.device[0] or start(found) != start(own)
            need(moved, f"memory of {own.device} is claimed to be on {found.device}")


@rule("producer", "should", METHOD)
def stream_on_cpu_refused(peer: ProducerCase) -> None:
    """A stream is refused on the CPU, because the standard allows only None there."""
    x = peer.new()
    if device_of(x)[0] != 1:
        raise NotApplicableError("the tensor is not on the CPU")
    try:
        x.__dlpack__(stream=1)
    except Exception:  # noqa: BLE001
        return
    raise BrokenError("stream=1 was accepted")


@rule("producer", "must", METHOD)
def byte_order_refused(peer: ProducerCase) -> None:
    """Data in the other byte order is a BufferError, because DLPack cannot say it."""
    array = np.array([1, 2, 3], ">f4")
    x = peer.like(array)
    if np.dtype(
        getattr(x, "dtype", "f4") if hasattr(getattr(x, "dtype", None), "isnative") else "f4"
    ).isnative:
        raise NotApplicableError("the tensor is in the native byte order")
    try:
        x.__dlpack__()
    except BufferError:
        return
    except Exception as error:  # noqa: BLE001
        raise BrokenError(f"it raised {text(error)}") from None
    raise BrokenError("it was exported")


@rule("producer", "must", METHOD)
def text_refused(peer: ProducerCase) -> None:
    """A tensor of text is refused, without a crash, because DLPack has no such dtype."""
    x = peer.like(np.array(["a", "b"]))
    if not hasattr(x, "__dlpack__"):
        raise NotApplicableError("it is not a producer")
    try:
        x.__dlpack__()
    except Exception:  # noqa: BLE001
        return
    raise BrokenError("it was exported")


# ---- the exchange table --------------------------------------------------------------------------


def table_of(x: Any) -> faults.ExchangeTable:
    """Return the table of the tensor's type, if it has one."""
    capsule = getattr(type(x), "__dlpack_c_exchange_api__", None)
    if capsule is None:
        raise NotApplicableError("the type has no exchange table")
    try:
        address = faults._get_pointer(capsule, faults.TABLE)
    except Exception as error:  # noqa: BLE001
        raise NotApplicableError(f"the table cannot be read: {text(error)}") from None
    return faults.ExchangeTable.from_address(address)


def function_of(x: Any, name: str, kind: Any) -> Any:
    """Return a function of the table of the type of `x`."""
    table = table_of(x)
    address = getattr(table, name)
    if table.major != 1 or not address:
        raise NotApplicableError(f"the table has no function {name} that is known")
    return kind(address)


@rule("producer", "must", TABLE)
def table_is_a_capsule(peer: ProducerCase) -> None:
    """`__dlpack_c_exchange_api__` is a capsule named dlpack_exchange_api, as C code reads it."""
    x = peer.new()
    capsule = getattr(type(x), "__dlpack_c_exchange_api__", None)
    if capsule is None:
        raise NotApplicableError("the type has no exchange table")
    try:
        faults._get_pointer(capsule, faults.TABLE)
    except Exception as error:  # noqa: BLE001
        raise BrokenError(text(error)) from None


@rule("producer", "must", TABLE)
def table_on_the_type(peer: ProducerCase) -> None:
    """The table is an attribute of the type, because consumers keep it for each type."""
    x = peer.new()
    need("__dlpack_c_exchange_api__" not in getattr(x, "__dict__", {}), "it belongs to the object")


@rule("producer", "must", TABLE)
def table_version(peer: ProducerCase) -> None:
    """The table's major version is 1, or an older table is behind it, as 1.3 knows no other."""
    table = table_of(peer.new())
    need(table.major == 1 or table.previous, f"its version is {table.major}.{table.minor}")


@rule("producer", "must", TABLE)
def table_is_complete(peer: ProducerCase) -> None:
    """Four of the table's functions are not NULL, because consumers call them unseen."""
    table = table_of(peer.new())
    missing = [n for n in ("allocate", "from_py", "to_py", "stream") if not getattr(table, n)]
    need(table.major != 1 or not missing, f"NULL: {', '.join(missing)}")


@rule("producer", "must", TABLE)
def table_exports_the_same(peer: ProducerCase) -> None:
    """The table exports what `__dlpack__` exports, because consumers take either."""
    x = peer.new()
    function, out = function_of(x, "from_py", faults.FromPy), ctypes.c_void_p()
    need(function(x, ctypes.byref(out)) == 0 and out.value, "it failed")
    with held(faults.make_capsule(out.value or 0, faults.VERSIONED)) as found, taken(x) as own:
        for name in ("shape", "dtype", "device"):
            one, two = getattr(found, name), getattr(own, name)
            need(one == two, f"{name} is {one} by the table and {two} by __dlpack__")


@rule("producer", "must", TABLE)
def table_borrows_the_same(peer: ProducerCase) -> None:
    """A borrowed view is that of `__dlpack__`, because kernels are called with it."""
    x = peer.new()
    function, out = function_of(x, "borrow", faults.Borrow), faults.DLTensor()
    need(function(x, ctypes.byref(out)) == 0, "it failed")
    with taken(x) as own:
        shape = tuple(out.shape[: out.ndim]) if out.ndim else ()
        need(shape == (own.shape or ()), f"shape {shape} instead of {own.shape}")
        address = (out.data or 0) + out.byte_offset
        need(address == start(own), "the data is elsewhere")


@rule("producer", "must", TABLE)
def table_returns_tensors(peer: ProducerCase) -> None:
    """`managed_tensor_to_py_object_no_sync` makes a tensor of the type, as results need one."""
    x = peer.new()
    give = function_of(x, "from_py", faults.FromPy)
    back, out = function_of(x, "to_py", faults.ToPy), ctypes.c_void_p()
    if give(x, ctypes.byref(out)) != 0:
        raise NotApplicableError("it exports nothing")
    made = ctypes.c_void_p()
    need(back(out.value, ctypes.byref(made)) == 0 and made.value, "it failed")
    y = ctypes.cast(made, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(y))
    need(isinstance(y, type(x)), f"it made a {type(y).__name__}")


@rule("producer", "must", TABLE)
def table_writes_the_stream(peer: ProducerCase) -> None:
    """`current_work_stream` writes its output, also for the CPU, because callers read it."""
    x = peer.new()
    function, out = function_of(x, "stream", faults.Stream), ctypes.c_void_p(0x5AD5)
    status = function(1, 0, ctypes.byref(out))
    need(status == 0, "it failed")
    need(out.value != 0x5AD5, "it returned 0 and left the output as it was")


@rule("producer", "must", TABLE)
def table_allocates(peer: ProducerCase) -> None:
    """The allocator gives a tensor of the prototype's shape, because consumers fill it."""
    x = peer.new()
    status, out, _, pending = allocate(x, (2, 32, 1))
    if status != 0 or pending:
        raise NotApplicableError("it refuses")
    with held(faults.make_capsule(out or 0, faults.VERSIONED)) as found:
        need(found.shape == (2, 3), f"asked for (2, 3), got {found.shape}")


@rule("producer", "must", TABLE)
def table_reports_by_set_error(peer: ProducerCase) -> None:
    """The allocator reports by SetError and no Python exception, because C code has no Python."""
    status, _, said, pending = allocate(peer.new(), (77, 13, 1))
    need(pending is None, f"it raised {pending}")
    if status == 0:
        raise NotApplicableError("it refuses nothing")
    need(said, "it failed without a call of SetError")


def allocate(
    x: Any, dtype: tuple[int, int, int]
) -> tuple[int, int | None, list[object], str | None]:
    """Call the allocator: status, address, what SetError got, and what Python exception came."""
    function, out = function_of(x, "allocate", faults.Allocate), ctypes.c_void_p()
    struct, *arrays = faults.make_struct(
        faults.Description(shape=(2, 3), strides=(3, 1), dtype=dtype), True
    )
    said: list[object] = []
    set_error = faults.SetError(lambda _, kind, message: said.append((kind, message)))
    pending = None
    try:
        status = function(ctypes.pointer(struct.dl), ctypes.byref(out), None, set_error)
    except Exception as error:  # noqa: BLE001
        status, pending = -1, text(error)
    del arrays
    return status, out.value, said, pending
