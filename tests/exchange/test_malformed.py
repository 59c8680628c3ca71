"""Structs that no producer should make: refused with the right reason, and released once.

Each has killed at least one library of today, or been read as wrong data by one.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlpack_peers import (
    LEGACY,
    VERSIONED,
    Consumer,
    Description,
    Legacy,
    ModernProducer,
    NativePeer,
    Producer,
    Record,
    Table,
    Versioned,
    capsule_name,
    exported,
    lend,
    make_capsule,
)

import dlbridge
from dlbridge import Tensor
from dlbridge._core import native
from dlbridge.errors import REASONS, ExchangeError

MEMORY = np.zeros(4096, np.uint8)
WORD = 2**63

VERSIONS = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])


def lie(**changes: Any) -> Description:
    """Return a float32[3] over real memory, changed as asked."""
    return Description(data=MEMORY.ctypes.data, keeps=MEMORY).but(**changes)


# name: (what the struct says, reason, a word that the message must have)
MALFORMED: dict[str, tuple[Description, str, str]] = {
    "ndim -1": (lie(ndim=-1), "ndim", "-1"),
    "ndim -2**31": (lie(ndim=-(2**31)), "ndim", "-2147483648"),
    "ndim 255": (lie(shape=(1,) * 255, strides=(1,) * 255), "ndim", "255"),
    "ndim 1000": (lie(shape=(1,) * 1000, strides=(1,) * 1000), "ndim", "1000"),
    "ndim 2**31 - 1": (lie(ndim=2**31 - 1), "ndim", "2147483647"),
    "NULL shape": (lie(shape=None, ndim=1), "null_shape", "NULL"),
    "NULL shape and strides": (lie(shape=None, strides=None, ndim=2), "null_shape", "NULL"),
    "NULL data": (lie(data=None), "null_data", "NULL"),
    "NULL data with an offset": (lie(data=None, byte_offset=64), "null_data", "NULL"),
    "NULL data of a scalar": (lie(data=None, shape=(), strides=()), "null_data", "NULL"),
    "negative dimension": (lie(shape=(-1,)), "shape", "negative"),
    "two negative dimensions": (lie(shape=(-2, -3), strides=(1, 1)), "shape", "negative"),
    "negative beside zero": (lie(shape=(0, -1), strides=(1, 1)), "shape", "negative"),
    "smallest dimension": (lie(shape=(-WORD,)), "shape", "negative"),
    "shape product": (lie(shape=(2**32, 2**32), strides=(1, 0)), "overflow", "overflow"),
    "bytes of the shape": (lie(shape=(2**61,), strides=(0,)), "overflow", "overflow"),
    "product without strides": (lie(shape=(2**62, 4), strides=None), "overflow", "overflow"),
    "reach of the strides": (lie(shape=(2, 2), strides=(2**62, 2**62)), "overflow", "overflow"),
    "smallest stride": (lie(shape=(2,), strides=(-WORD,)), "overflow", "overflow"),
    "offset past the address space": (lie(byte_offset=2**64 - 64), "overflow", "overflow"),
    "offset of half the address space": (lie(byte_offset=2**63), "overflow", "overflow"),
    "lanes 0": (lie(dtype=(2, 32, 0)), "lanes", "lanes"),
    "bits 0": (lie(dtype=(2, 0, 1)), "dtype", "dtype"),
    "int7": (lie(dtype=(0, 7, 1)), "dtype", "7"),
    "int128": (lie(dtype=(0, 128, 1)), "dtype", "128"),
    "float8 without a name": (lie(dtype=(2, 8, 1)), "dtype", "8"),
    "code 18": (lie(dtype=(18, 8, 1)), "dtype", "18"),
    "code 19 of no bits": (lie(dtype=(19, 0, 1)), "dtype", "19"),
    "device 0": (lie(device=(0, 0)), "device", "0"),
    "device 5": (lie(device=(5, 0)), "device", "5"),
    "device -1": (lie(device=(-1, 0)), "device", "-1"),
}

# The same, for what a legacy struct has no field to say.
MALFORMED_VERSIONED: dict[str, tuple[Description, str, str]] = {
    "unknown flag": (lie(flags=8), "flags", "flags"),
    "highest flag": (lie(flags=2**63), "flags", "flags"),
    "all flags": (lie(flags=2**64 - 1), "flags", "flags"),
    "major 2": (lie(version=(2, 0)), "version", "version"),
    "major 0": (lie(version=(0, 8)), "version", "version"),
    "major 2**32 - 1": (lie(version=(2**32 - 1, 0)), "version", "version"),
}

CASES = [
    pytest.param(what, versioned, reason, word, id=f"{name}, {kind}")
    for rows, kinds in (
        (MALFORMED, (("legacy", False), ("versioned", True))),
        (MALFORMED_VERSIONED, (("versioned", True),)),
    )
    for name, (what, reason, word) in rows.items()
    for kind, versioned in kinds
]

# Odd, but right: the standard allows each of these.
UNUSUAL: dict[str, Description] = {
    "NULL shape of a scalar": lie(shape=None, strides=None, ndim=0),
    "64 dimensions": lie(shape=(1,) * 64, strides=(1,) * 64),
    "254 dimensions": lie(shape=(1,) * 254, strides=(1,) * 254),
    "NULL strides": lie(shape=(2, 3), strides=None),
    "NULL data without elements": lie(shape=(2, 0), strides=(0, 1), data=None),
    "odd strides of a dimension of one": lie(shape=(1, 3), strides=(-WORD, 1)),
    "odd strides without elements": lie(shape=(0, 3), strides=(7, -9)),
    "negative stride": lie(strides=(-1,), byte_offset=64),
    "stride zero": lie(shape=(1000,), strides=(0,)),
    "misaligned": lie(byte_offset=1),
    "lanes 4": lie(dtype=(2, 32, 4)),
    "lanes 65535": lie(dtype=(1, 8, 65535), shape=(0,)),
    "bool of one bit": lie(dtype=(6, 1, 1)),
    "opaque handle": lie(dtype=(3, 64, 1)),
    "complex32": lie(dtype=(5, 32, 1)),
    "bcomplex32": lie(dtype=(18, 32, 1)),
    "float6": lie(dtype=(15, 6, 1), shape=(4,)),
    "minor 99": lie(version=(1, 99)),
    "every known flag": lie(dtype=(1, 4, 1), flags=7),
    "a negative device index": lie(device=(2, -1)),
}


def take_capsule(producer: Producer, versioned: bool) -> object:
    """Take through the core. The local name keeps the capsule until the exception is handled:
    a destructor in Python must not run while one is on its way."""
    capsule = producer.capsule(versioned)
    return native.take_capsule(capsule)


def as_tensor(producer: Producer, versioned: bool) -> object:
    """Take a raw capsule through the package."""
    capsule = producer.capsule(versioned)
    return dlbridge.as_tensor(capsule)


# The ways in that must all be as careful as each other.
WAYS: dict[str, Callable[[Producer, bool], object]] = {
    "take_capsule": take_capsule,
    "as_tensor": as_tensor,
    "from_dlpack": lambda producer, _: dlbridge.from_dlpack(producer),
    "to_numpy": lambda producer, _: dlbridge.convert(producer, "numpy"),
}


def check_refusal(error: ExchangeError, reason: str, word: str) -> None:
    """The reason is one that programs know, and the text names the problem."""
    assert error.reason == reason
    assert reason in REASONS
    assert word in str(error), str(error)
    assert "NULL pointer" not in str(error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("what", "versioned", "reason", "word"), CASES)
def test_a_malformed_struct_is_refused_and_released_exactly_once(
    way: str, what: Description, versioned: bool, reason: str, word: str
) -> None:
    producer = ModernProducer(what, device=(1, 0))
    with pytest.raises(ExchangeError) as caught:
        WAYS[way](producer, versioned)
    check_refusal(caught.value, reason, word)
    assert producer.loans
    assert all(loan.deleted == 1 for loan in producer.loans)


@pytest.mark.parametrize(("what", "versioned", "reason", "word"), CASES)
def test_a_malformed_struct_out_of_an_exchange_table_is_refused_alike(
    what: Description, versioned: bool, reason: str, word: str
) -> None:
    """The table hands over bare structs; the same checks hold."""
    if not versioned:
        pytest.skip("a table exchanges versioned structs only")
    table = Table()
    x = table.make_type()(Producer(what))
    with pytest.raises(ExchangeError) as caught:
        native.take_table(x, table.capsule)
    check_refusal(caught.value, reason, word)
    assert [loan.deleted for loan in x.producer.loans] == [1]


@VERSIONS
@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_struct_is_taken_and_passed_on_as_it_says(name: str, versioned: bool) -> None:
    what = UNUSUAL[name]
    if not versioned and what.flags:
        pytest.skip("a legacy struct has no flags")
    producer = ModernProducer(what)
    tensor = native.take_capsule(producer.capsule(versioned))
    shape = what.shape or ()
    assert tensor.shape == shape
    assert tensor.dtype.triple == what.dtype
    assert tensor.data_ptr == ((what.data or 0) + what.byte_offset if what.data else 0)
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 3)))
    assert consumer.shape == shape
    if what.strides is not None and shape:
        assert consumer.strides == what.strides
    consumer.release()
    del tensor
    assert producer.deleted == 1


@VERSIONS
def test_a_null_deleter_is_allowed_and_nothing_is_called(versioned: bool) -> None:
    """The standard allows it; JAX aborts and dpnp crashes, so what we export has a real one."""
    producer = ModernProducer(lie(has_deleter=False))
    tensor = native.take_capsule(producer.capsule(versioned))
    consumer = Consumer(exported(tensor, versioned))
    assert consumer.has_deleter
    consumer.release()
    del tensor
    assert producer.deleted == 0


@VERSIONS
@pytest.mark.parametrize(
    "what",
    [lie(ndim=-1), lie(data=None), lie(shape=(-1,))],
    ids=["ndim", "data", "shape"],
)
def test_a_malformed_struct_with_a_null_deleter_is_refused_without_a_crash(
    what: Description, versioned: bool
) -> None:
    producer = ModernProducer(what.but(has_deleter=False))
    with pytest.raises(ExchangeError):
        take_capsule(producer, versioned)
    assert producer.deleted == 0


@pytest.mark.parametrize("major", [0, 2, 7])
def test_of_another_major_version_nothing_but_the_deleter_is_read(
    major: int, native_peer: NativePeer
) -> None:
    """Another major is another struct: what lies where the tensor used to be may be anything.

    Here it ends with the flags, right before a page that nobody may read.
    """
    area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    border = ctypes.addressof(ctypes.c_char.from_buffer(area)) + mmap.PAGESIZE
    libc = ctypes.CDLL(None)
    if libc.mprotect(ctypes.c_void_p(border), mmap.PAGESIZE, 0) != 0:
        pytest.skip("mprotect is not to be had here")
    record = native_peer.lend(lie(version=(major, 0)))
    head = Versioned.dl.offset
    ctypes.memmove(border - head, native_peer.held.peer_managed(record), head)
    try:
        with pytest.raises(ExchangeError) as caught:
            native.take_capsule(make_capsule(border - head, VERSIONED))
    finally:
        libc.mprotect(ctypes.c_void_p(border), mmap.PAGESIZE, 3)
    check_refusal(caught.value, "version", "version")
    assert Record.from_address(record).calls == 1
    native_peer.held.peer_free(record)


def test_the_wrong_struct_under_a_name_is_not_our_business_but_the_name_is() -> None:
    """Kind follows from the name alone; a capsule of another name is never dereferenced."""
    for name in (b"dltensor_versionee", b"DLTENSOR", b"dltensor ", b"", b"used_dltensors"):
        capsule = make_capsule(0x10, name)
        with pytest.raises(ExchangeError) as caught:
            native.take_capsule(capsule)
        assert caught.value.reason == "producer"
        assert capsule_name(capsule) == name.decode()


@pytest.mark.parametrize(("name", "struct"), [(LEGACY, Legacy), (VERSIONED, Versioned)])
def test_a_capsule_without_destructor_is_taken_like_any_other(name: bytes, struct: type) -> None:
    loan = lend(lie(), versioned=struct is Versioned)
    tensor = native.take_capsule(make_capsule(loan.address, name))
    assert loan.deleted == 0
    del tensor
    assert loan.deleted == 1


@pytest.mark.parametrize("answer", [None, 1, (1,), (1, 2, 3), ("cpu", 0), "xy", (None, None)])
def test_a_senseless_device_is_a_refusal_that_names_the_producer(answer: object) -> None:
    """It is asked for only where it matters: the capsule itself says where the memory is."""

    class Odd(ModernProducer):
        def __dlpack_device__(self) -> object:
            return answer

    producer = Odd(lie())
    with pytest.raises(ExchangeError) as caught:
        dlbridge.from_dlpack(producer, device="cpu")
    assert caught.value.reason in ("producer", "device")
    assert "Odd" in str(caught.value)
    assert all(loan.deleted == 1 for loan in producer.loans)


def test_a_refused_struct_is_freed_while_its_error_is_still_held() -> None:
    """The error is text: it must not keep the capsule, and so the memory, alive."""
    array = np.zeros(8, np.float32)
    references = sys.getrefcount(array)
    producer = ModernProducer(lie(shape=(-1,), keeps=array))
    held = []
    try:
        take_capsule(producer, True)
    except ExchangeError as error:
        held.append(error)
    assert producer.deleted == 1
    producer.what = lie()
    assert sys.getrefcount(array) == references
    assert held


@pytest.mark.parametrize("shape", [(1,), (0,), (0, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("stride", [WORD - 1, -WORD, -WORD + 1])
@pytest.mark.parametrize("dtype", [(2, 32, 1), (2, 32, 4), (1, 8, 16), (0, 4, 1)], ids=str)
def test_strides_that_reach_no_element_do_no_harm(
    shape: tuple[int, ...], stride: int, dtype: tuple[int, int, int]
) -> None:
    """Taken or refused, and then read: nothing overflows on the way to a value."""
    strides = (stride,) * len(shape)
    producer = ModernProducer(lie(shape=shape, strides=strides, dtype=dtype))
    try:
        tensor = dlbridge.from_dlpack(producer)
    except ExchangeError:
        return
    for call in (repr, np.asarray, Tensor.tolist, Tensor.copy, lambda x: dlbridge.equal(x, x)):
        call(tensor)
    if dtype[2] > 1:
        assert np.asarray(tensor).shape == (*shape, dtype[2])


@VERSIONS
@pytest.mark.parametrize("device", [(1, 0), (14, 0)], ids=["cpu", "oneapi"])
def test_strides_below_address_0_are_passed_on_as_they_are(
    device: tuple[int, int], versioned: bool
) -> None:
    """Tensors of oneAPI begin at their lowest address, which such strides do not have."""
    producer = ModernProducer(lie(shape=(3,), strides=(-(2**56),), device=device))
    tensor = native.take_capsule(producer.capsule(versioned))
    with pytest.raises(ExchangeError, match=r"\[overflow\]"):
        tensor[::-1]
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 3) if versioned else None))
    assert (consumer.data + consumer.byte_offset) % 2**64 == tensor.data_ptr
    assert consumer.strides == (-(2**56),)
    consumer.release()
    del tensor
    assert producer.deleted == 1
