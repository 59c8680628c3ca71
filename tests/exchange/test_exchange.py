"""from_dlpack, as_tensor, to_dlpack, convert and explain: policies, protocols and refusals."""

from __future__ import annotations

import array
import ctypes
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlpack_peers import (
    CUDA,
    IS_COPIED,
    READ_ONLY,
    STYLES,
    Consumer,
    ModernProducer,
    NoneProducer,
    Producer,
    RaisingProducer,
    describe,
)

import dlbridge
from dlbridge import (
    ArgumentError,
    ExchangeError,
    FrameworkMissingError,
    Tensor,
    UnsupportedTypeError,
    as_tensor,
    convert,
    explain,
    from_dlpack,
    to_dlpack,
    to_numpy,
)
from dlbridge.errors import REASONS


def refused(reason: str, call: Callable[..., Any], *args: Any, **keywords: Any) -> str:
    with pytest.raises(ExchangeError) as caught:
        call(*args, **keywords)
    assert caught.value.reason == reason, str(caught.value)
    return str(caught.value)


def matrix() -> np.ndarray[Any, Any]:
    return np.arange(24, dtype=np.float32).reshape(4, 6)


# ---- from_dlpack -------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_producers_of_every_age_are_taken(style: str) -> None:
    x = matrix()
    producer = STYLES[style](x)
    tensor = from_dlpack(producer)
    assert (tensor.shape, tensor.data_ptr) == ((4, 6), x.ctypes.data)
    del tensor
    assert [loan.deleted for loan in producer.loans] == [1]


def test_the_device_argument() -> None:
    x = matrix()
    for device in ("cpu", (1, 0), dlbridge.Device("cpu")):
        assert from_dlpack(x, device=device).data_ptr == x.ctypes.data
    refused("device", from_dlpack, x, device="rocm:0")
    refused("device", from_dlpack, x, device=(14, 0))


def test_the_copy_argument() -> None:
    x = matrix()
    assert from_dlpack(x, copy=False).data_ptr == x.ctypes.data
    assert from_dlpack(x, copy=None).data_ptr == x.ctypes.data
    copied = from_dlpack(x, copy=True)
    x[0, 0] = 99
    assert copied.tolist()[0][0] == 0
    with pytest.raises(ArgumentError, match="copy must be one of"):
        from_dlpack(x, copy="yes")  # type: ignore[arg-type]


def test_a_tensor_gives_another_tensor_of_the_same_memory() -> None:
    x = from_dlpack(matrix())
    y = from_dlpack(x)
    assert y is not x
    assert y.data_ptr == x.data_ptr


def test_the_stream_argument_reaches_a_producer_on_a_device_alone() -> None:
    cpu, gpu = ModernProducer(matrix()), ModernProducer(describe(matrix(), device=(CUDA, 0)))
    from_dlpack(cpu, stream=5)
    from_dlpack(gpu, stream=5)
    assert cpu.calls[0].get("stream") is None
    assert gpu.calls[0]["stream"] == 5


def test_anything_but_a_tensor_is_refused() -> None:
    for x in (object(), None, "text", {}, 3.5j):
        with pytest.raises(UnsupportedTypeError) as caught:
            from_dlpack(x)
        assert isinstance(caught.value, TypeError)
        assert "__dlpack__" in str(caught.value)


def test_producers_that_give_nothing() -> None:
    refused("producer", from_dlpack, NoneProducer(matrix()))
    raising = RaisingProducer(matrix())
    refused("producer", from_dlpack, raising)
    assert len(raising.calls) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cannot export a read-only array", "readonly"),
        ("Can't export tensors that require gradient", "requires_grad"),
        ("the conjugate bit is set", "conjugate"),
        ("byte order", "byte_order"),
        ("strides are no multiple", "strides"),
        ("no such stream", "stream"),
        ("wrong device", "device"),
        ("unsupported dtype", "dtype"),
        ("Array has been deleted", "lazy"),
        ("anything else", "producer"),
    ],
)
def test_a_producers_words_become_a_reason(text: str, reason: str) -> None:
    class Refusing(Producer):
        def __dlpack__(self, **keywords: object) -> object:
            raise BufferError(text)

    assert text in refused(reason, from_dlpack, Refusing(matrix()))


def test_every_reason_has_a_text_and_survives_a_pickle() -> None:
    for reason in REASONS:
        error = pickle.loads(pickle.dumps(ExchangeError(reason, "text")))
        assert (error.reason, str(error)) == (reason, f"text [{reason}]")


# ---- as_tensor: everything ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (3, "int64", ()),
        (2.5, "float64", ()),
        (True, "bool", ()),
        (1 + 2j, "complex128", ()),
        ([1, 2], "int64", (2,)),
        ([[1.0, 2], [3, 4]], "float64", (2, 2)),
        (((1, 2), (3, 4)), "int64", (2, 2)),
        ([], "float64", (0,)),
    ],
)
def test_nested_numbers_are_copied(value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = as_tensor(value)
    assert (tensor.dtype, tensor.shape) == (dtype, shape)
    assert tensor.tolist() == np.asarray(value).tolist()
    refused("copy_required", as_tensor, value, copy=False)


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")
def test_nested_numbers_that_are_no_tensor() -> None:
    for value in ([[1], [2, 3]], [object()]):
        with pytest.raises(UnsupportedTypeError):
            as_tensor(value)
    refused("dtype", as_tensor, ["a"])


def test_a_tensor_is_returned_as_it_is() -> None:
    x = from_dlpack(matrix())
    assert as_tensor(x) is x
    assert as_tensor(x, copy=True).data_ptr != x.data_ptr
    assert as_tensor(x, device="cpu").data_ptr == x.data_ptr


@pytest.mark.parametrize("versioned", [False, True])
def test_raw_capsules_are_consumed_once(versioned: bool) -> None:
    producer = Producer(matrix())
    capsule = producer.capsule(versioned)
    tensor = as_tensor(capsule)
    assert tensor.data_ptr == producer.what.data
    refused("consumed", as_tensor, capsule)
    refused("consumed", from_dlpack, capsule)
    del tensor
    assert producer.deleted == 1


def test_buffers() -> None:
    numbers = array.array("d", [1, 2, 3])
    tensor = as_tensor(numbers)
    assert (tensor.tolist(), tensor.dtype) == ([1, 2, 3], "float64")
    assert tensor.data_ptr == numbers.buffer_info()[0]
    assert as_tensor(b"abc").readonly
    assert not as_tensor(bytearray(b"abc")).readonly
    assert as_tensor(memoryview(bytearray(range(6))).cast("B", (2, 3))).shape == (2, 3)
    assert as_tensor((ctypes.c_int32 * 3)(1, 2, 3)).tolist() == [1, 2, 3]


# ---- the array interfaces ----------------------------------------------------------------------


class Interface:
    """An object with one of the two interfaces, as its maker says."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.array = matrix()
        about = {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.ctypes.data, False),
            "version": 3,
        }
        setattr(self, name, {**about, **fields})


INTERFACES = ("__array_interface__", "__cuda_array_interface__")
each_interface = pytest.mark.parametrize("name", INTERFACES)


@each_interface
def test_an_interface_is_shared(name: str) -> None:
    x = Interface(name)
    tensor = from_dlpack(x)
    assert (tensor.shape, tensor.dtype) == ((4, 6), "float32")
    assert tensor.data_ptr == x.array.ctypes.data
    assert tensor.device == ("cuda:0" if "cuda" in name else "cpu")
    assert not tensor.readonly


@each_interface
def test_an_interface_says_strides_and_read_only(name: str) -> None:
    x = Interface(name, shape=(6, 4), strides=(4, 24))
    assert from_dlpack(x).strides == (1, 6)
    address = x.array.ctypes.data
    assert from_dlpack(Interface(name, data=(address, True))).readonly
    odd = Interface(name, shape=(2,), strides=(5,))
    if "cuda" in name:
        refused("strides", from_dlpack, odd)
    refused("strides", from_dlpack, odd, copy=False)


@each_interface
def test_invalid_array_interfaces_are_refused(name: str) -> None:
    refused("masked", from_dlpack, Interface(name, mask=np.ones((4, 6), bool)))
    if "cuda" in name:
        refused("byte_order", from_dlpack, Interface(name, typestr=">f4"))
    for typestr in ("|O8", "<U3", "|V4"):
        refused("dtype", from_dlpack, Interface(name, typestr=typestr))


SWAPPED = np.arange(6, dtype=">f4").reshape(2, 3)
ODD = np.zeros(4, dtype=[("a", "i1"), ("b", "f8")])["b"]
ODD[...] = range(4)
NO_DLPACK_LAYOUT = {
    "byte order": (SWAPPED, "byte_order"),
    "byte order, transposed": (SWAPPED.T, "byte_order"),
    "byte order, reversed": (SWAPPED[::-1], "byte_order"),
    "byte order, complex": (np.arange(3).astype(">c8"), "byte_order"),
    "strides": (ODD, "strides"),
    "strides, reversed": (ODD[::-2], "strides"),
    "strides and byte order": (ODD.view(">f8"), "byte_order"),
}


class Described:
    """An object with the array interface of another."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.__array_interface__ = x.__array_interface__


class DescribedBuffer(bytearray):
    """The same, whose elements are in its own buffer."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (3,), "typestr": ">i4", "strides": (8,), "offset": 4, "version": 3}


@pytest.mark.parametrize("layout", NO_DLPACK_LAYOUT)
@pytest.mark.parametrize("way", [np.asarray, Described, memoryview])
def test_a_layout_that_dlpack_cannot_name_is_copied_whoever_hands_it_out(
    way: Any, layout: str
) -> None:
    x, why = NO_DLPACK_LAYOUT[layout]
    with dlbridge.receipts() as log:
        tensor = from_dlpack(way(x))
    np.testing.assert_array_equal(np.asarray(tensor), x)
    assert not tensor.readonly
    assert (log[0].copied_by, log[0].why) == ("numpy", why)
    refused(why, from_dlpack, way(x), copy=False)
    assert explain(way(x), "dlbridge").why == why


def test_an_array_interface_over_a_buffer_of_another_byte_order_is_copied() -> None:
    x = DescribedBuffer(np.arange(7, dtype=">i4").tobytes())
    assert from_dlpack(x).tolist() == [1, 3, 5]


def test_ctypes_of_another_byte_order_are_copied() -> None:
    kind: Any = ctypes.c_int32.__ctype_be__  # type: ignore[attr-defined]
    assert from_dlpack((kind * 3)(1, 2, 3)).tolist() == [1, 2, 3]
    assert from_dlpack(kind(7)).tolist() == 7


def test_memory_of_another_byte_order_is_checked_before_it_is_read() -> None:
    """NumPy would read from the address 0."""
    name = "__array_interface__"
    refused("null_data", from_dlpack, Interface(name, typestr=">f4", data=(0, False)))
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # NumPy 1 takes such an object for a scalar
        none = Interface(name, typestr=">f4", shape=(0, 3), data=(0, False))
        assert from_dlpack(none).shape == (0, 3)
    for shape in ((2**62, 8), (1,) * 65):
        refused("producer", from_dlpack, Interface(name, typestr=">f4", shape=shape))


class _Pair(ctypes.Union):
    _fields_ = (("i", ctypes.c_int32), ("d", ctypes.c_double))


class _Packed(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("i", ctypes.c_int32), ("b", ctypes.c_int32))


@pytest.mark.parametrize("x", [_Pair(), (_Pair * 3)(), _Packed(), (_Packed * 3)()])
def test_ctypes_unions_and_structures_are_no_integers(x: Any) -> None:
    """The format of their buffer is that of a byte, whatever their size, or of the fields."""
    if sys.version_info < (3, 13) or isinstance(x, ctypes.Union):
        assert memoryview(x).format.endswith("B")
    assert "8 bytes" in refused("dtype", from_dlpack, x)


def test_the_size_of_a_long_is_that_of_the_platform() -> None:
    """Which ctypes writes behind "<", as if it were the standard size."""
    tensor = from_dlpack((ctypes.c_long * 2)(1, -2))
    assert (tensor.tolist(), tensor.dtype.itemsize) == ([1, -2], ctypes.sizeof(ctypes.c_long))


@each_interface
def test_an_interface_without_elements(name: str) -> None:
    assert from_dlpack(Interface(name, shape=(0, 3), data=(0, False))).shape == (0, 3)
    refused("null_data", from_dlpack, Interface(name, data=(0, False)))


@pytest.mark.parametrize("stream", [7, None, 1])
def test_the_stream_of_the_cuda_interface_is_kept(stream: int | None) -> None:
    """Whoever works on the memory waits for it; without one, for the legacy default stream."""
    x = from_dlpack(Interface("__cuda_array_interface__", stream=stream))
    assert x.device == "cuda:0"
    assert x.__cuda_array_interface__["stream"] == (stream or 1)


@pytest.mark.parametrize("stream", [0, -1, "1", True])
def test_a_stream_that_the_cuda_interface_does_not_know_is_refused(stream: object) -> None:
    x = Interface("__cuda_array_interface__", stream=stream)
    assert repr(stream) in refused("stream", from_dlpack, x)


def test_the_device_of_the_cuda_interface() -> None:
    x = Interface("__cuda_array_interface__")
    x.device = type("Device", (), {"id": 3})()
    assert from_dlpack(x).device == "cuda:3"


def test_an_array_interface_over_a_buffer() -> None:
    class Bytes(bytearray):
        @property
        def __array_interface__(self) -> dict[str, Any]:
            return {"shape": (3,), "typestr": "<i4", "version": 3, "offset": 4}

    x = Bytes(np.arange(4, dtype=np.int32).tobytes())
    assert from_dlpack(x).tolist() == [1, 2, 3]
    short = Bytes(b"1234")
    refused("shape", from_dlpack, short)


def test_an_interface_keeps_its_object_alive() -> None:
    tensor = from_dlpack(Interface("__array_interface__"))
    assert tensor.tolist() == matrix().tolist()


def test_dlpack_comes_before_the_interfaces() -> None:
    producer = ModernProducer(matrix())
    producer.__array_interface__ = {"wrong": True}  # type: ignore[attr-defined]
    assert from_dlpack(producer).shape == (4, 6)


class Described:
    """An object whose array interface says what its maker wants."""

    def __init__(self, name: str = "__array_interface__", **fields: Any) -> None:
        setattr(self, name, {"shape": (2,), "typestr": "|u1", "version": 3, **fields})


def test_the_data_of_an_array_interface_may_be_a_buffer() -> None:
    """NumPy allows it; unpacked as a pair, its first byte would be taken for an address."""
    tensor = from_dlpack(Described(data=b"ab"))
    assert (tensor.tolist(), tensor.readonly) == ([97, 98], True)
    memory = bytearray(range(12))
    tensor = from_dlpack(
        Described(data=memory, typestr="<u2", shape=(2, 2), strides=(4, -2), offset=4)
    )
    assert tensor.tolist() == [[0x0504, 0x0302], [0x0908, 0x0706]]
    memory[4] = 0xFF
    assert tensor.tolist()[0][0] == 0x05FF
    assert from_dlpack(Described(data=memoryview(b""), shape=(0, 3))).shape == (0, 3)
    with pytest.raises(BufferError):
        memory.extend(b"more")  # it is exported


MALFORMED: dict[str, tuple[str, dict[str, Any]]] = {
    "shape None": ("producer", {"shape": None}),
    "shape text": ("producer", {"shape": "ab"}),
    "shape of floats": ("producer", {"shape": (2.0,)}),
    "shape negative": ("shape", {"shape": (-1,)}),
    "shape too large": ("overflow", {"shape": (2**64,)}),
    "shape too large by one": ("overflow", {"shape": (2**63,)}),
    "shape overflows": ("overflow", {"shape": (0, 2**62, 2**62)}),
    "shape too long": ("ndim", {"shape": (1,) * 300}),
    "typestr empty": ("producer", {"typestr": ""}),
    "typestr None": ("producer", {"typestr": None}),
    "typestr of bits": ("producer", {"typestr": "<t4"}),
    "typestr of no size": ("producer", {"typestr": "<f3"}),
    "typestr of two": ("producer", {"typestr": "<i4,<i4"}),
    "strides too few": ("producer", {"strides": ()}),
    "strides too many": ("producer", {"strides": (1, 1)}),
    "strides of text": ("producer", {"strides": ("a",)}),
    "data too short": ("producer", {"data": (0,)}),
    "data too long": ("producer", {"data": (0, False, 1)}),
    "data list": ("producer", {"data": [0, False]}),
    "address text": ("producer", {"data": ("0", False)}),
    "address float": ("producer", {"data": (1.5, False)}),
    "address negative": ("producer", {"data": (-8, False)}),
    "address too large": ("producer", {"data": (2**64, False)}),
}


@each_interface
@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_interface_is_a_refusal(name: str, case: str) -> None:
    """Callers catch ExchangeError; an IndexError of ours would say nothing of the producer."""
    reason, fields = MALFORMED[case]
    memory = np.arange(8, dtype=np.uint8)
    fields = {"data": (memory.ctypes.data, False), **fields}
    assert "Described" in refused(reason, from_dlpack, Described(name, **fields)) or (
        reason in ("overflow", "ndim")  # the core's words
    )


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("producer", {"offset": -1}),
        ("producer", {"offset": 1.5}),
        ("producer", {"offset": None}),
        ("shape", {"offset": 7}),
        ("shape", {"shape": (9,)}),
        ("shape", {"strides": (8,)}),
        ("producer", {"strides": (-1,)}),
        ("producer", {"data": object()}),
        ("producer", {"data": memoryview(bytes(16))[::2]}),
    ],
)
def test_an_interface_never_reaches_beyond_its_buffer(reason: str, fields: Any) -> None:
    """A negative offset is smaller than any size, and so passes a check of the end alone."""
    refused(reason, from_dlpack, Described(**{"data": bytes(8), **fields}))


@each_interface
def test_an_interface_that_is_no_dict_is_a_refusal(name: str) -> None:
    x = type("Odd", (), {name: 5})()
    refused("producer", from_dlpack, x)


def test_a_cuda_interface_has_an_address_and_an_index() -> None:
    name = "__cuda_array_interface__"
    for data in (None, b"ab"):
        refused("producer", from_dlpack, Described(name, data=data))
    for number in ("uuid", -1, 2**40):
        x = Described(name, data=(0, False), shape=(0,))
        x.device = type("Device", (), {"id": number})()  # type: ignore[attr-defined]
        refused("producer", from_dlpack, x)


def test_an_interface_that_is_absent_from_this_object_hides_none() -> None:
    """torch raises AttributeError in the CUDA property of CPU tensors; so do others."""
    array = matrix()

    class Both:
        __array_interface__ = array.__array_interface__
        __dlpack__ = None

        @property
        def __cuda_array_interface__(self) -> Any:
            raise AttributeError("not on a GPU")

    assert from_dlpack(Both()).data_ptr == array.ctypes.data


def test_an_interface_that_fails_is_a_refusal() -> None:
    class Failing:
        @property
        def __array_interface__(self) -> Any:
            raise RuntimeError("no memory left")

    assert "no memory left" in refused("producer", from_dlpack, Failing())


@pytest.mark.parametrize("table", [None, 3, property(lambda self: None)])
def test_an_invalid_table_does_not_stand_before_dlpack(table: object) -> None:
    """A class opts out of the exchange table by None, as Python's own protocols have it."""
    kind = type("Opted", (ModernProducer,), {"__dlpack_c_exchange_api__": table})
    x = matrix()
    assert from_dlpack(kind(x)).data_ptr == x.ctypes.data
    with dlbridge.receipts() as log:
        assert from_dlpack(kind(x)).data_ptr == x.ctypes.data
    assert log[0].route == "__dlpack__"


class _Equal(type):
    """A metaclass that compares and cannot be hashed."""

    def __eq__(cls, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ODD = (
    type("Homeless", (), {"__module__": None}),
    _Equal("Unhashable", (), {}),
)


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.__qualname__)
def test_odd_classes_are_unknown_types_like_others(kind: Any) -> None:
    """Their names and comparisons are asked for long before it is known whether they fit."""
    for call in (from_dlpack, as_tensor, lambda x: convert(x, "numpy"), lambda x: explain(x, np)):
        with pytest.raises(UnsupportedTypeError, match=kind.__qualname__):
            call(kind())
    with pytest.raises(ArgumentError):
        convert(matrix(), kind)
    x = matrix()
    producer = type(kind)("Odd", (ModernProducer,), {"__module__": None})(x)
    assert from_dlpack(producer).data_ptr == x.ctypes.data
    assert to_numpy(producer).ctypes.data == x.ctypes.data


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.__qualname__)
def test_odd_objects_are_no_dtype_and_no_device(kind: Any) -> None:
    """Equality says False of what it does not know, and never raises."""
    for known in (dlbridge.DType("int8"), dlbridge.Device("cpu")):
        assert (known == kind()) is False
        assert known != kind()


# ---- to_dlpack ---------------------------------------------------------------------------------


def test_to_dlpack_gives_what_was_asked_for() -> None:
    x = matrix()
    legacy = Consumer(to_dlpack(x))
    assert (legacy.versioned, legacy.data) == (False, x.ctypes.data)
    versioned = Consumer(to_dlpack(x, max_version=(1, 0)))
    assert (versioned.versioned, versioned.version) == (True, (1, 3))
    copied = Consumer(to_dlpack(x, max_version=(1, 3), copy=True))
    assert copied.flags & IS_COPIED
    assert copied.data != x.ctypes.data
    for consumer in (legacy, versioned, copied):
        assert np.array_equal(consumer.values(), x)
        consumer.release()
    refused("device", to_dlpack, x, dl_device=(CUDA, 0))
    refused("stream", to_dlpack, x, stream=1)


def test_to_dlpack_takes_whatever_as_tensor_takes() -> None:
    for x in ([1, 2, 3], array.array("d", [1]), Interface("__array_interface__")):
        Consumer(to_dlpack(x)).release()


def test_to_dlpack_of_read_only_memory_needs_a_version_that_says_so() -> None:
    refused("readonly", to_dlpack, b"abc")
    consumer = Consumer(to_dlpack(b"abc", max_version=(1, 0)))
    assert consumer.flags & READ_ONLY
    consumer.release()


# ---- convert: its target and its policies ------------------------------------------------------


def test_the_target_may_be_a_name_a_module_or_a_type() -> None:
    producer = ModernProducer(matrix())
    for to in ("numpy", np, np.ndarray, np.matrix):
        assert type(convert(producer, to)) is np.ndarray
    for to in ("dlbridge", dlbridge, Tensor):
        assert type(convert(producer, to)) is Tensor


def test_unknown_targets() -> None:
    for to in ("nonsense", ctypes, int, 3, None, ""):
        with pytest.raises(ArgumentError):
            convert(matrix(), to)
    with pytest.raises(ArgumentError, match="numpy, torch"):
        convert(matrix(), "nonsense")


def test_a_framework_that_is_missing_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlbridge.exchange import adapter

    monkeypatch.setattr(adapter.adapter("cupy"), "module", "no_such_module", raising=False)
    monkeypatch.setattr(adapter, "_STARTED", set())
    for call in (convert, explain):
        with pytest.raises(FrameworkMissingError, match="cupy") as caught:
            call(matrix(), "cupy")
        assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ({"copy": 1.5}, "copy must be one of"),
        ({"readonly": "maybe"}, "readonly must be one of"),
        ({"immutable": "refuse"}, "immutable must be one of"),
        ({"grad": "keep"}, "grad must be one of"),
        ({"layout": "fortran"}, "layout must be one of"),
        ({"nonsense": 1}, "unknown policy 'nonsense'; known are device, copy, readonly, "),
        ({"call": 1}, "unknown policy 'call'"),
        ({"device": "moon"}, "moon"),
    ],
)
def test_wrong_policies(policies: dict[str, Any], said: str) -> None:
    calls = (to_numpy, lambda x, **p: convert(x, "numpy", **p), lambda x, **p: explain(x, np, **p))
    for call in calls:
        with pytest.raises(ArgumentError, match=said):
            call(matrix(), **policies)


def test_copy_true_and_false() -> None:
    x = matrix()
    assert to_numpy(x, copy=True).ctypes.data != x.ctypes.data
    assert to_numpy(ModernProducer(x), copy=False).ctypes.data == x.ctypes.data
    swapped = np.arange(3, dtype=">f4")
    refused("byte_order", lambda: convert(swapped, "dlbridge", copy=False))


@pytest.mark.parametrize("copy", [1, 0, 1.0, "", np.ones(2), np.int64(1)])
def test_copy_is_true_false_or_none_and_no_equal_of_them(copy: Any) -> None:
    """A value equal to True that is not True would pass the check and then mean something else."""
    x = matrix()
    calls: list[Callable[..., Any]] = [
        from_dlpack,
        as_tensor,
        to_dlpack,
        to_numpy,
        lambda x, **p: as_tensor(from_dlpack(x), **p),
        lambda x, **p: explain(x, "numpy", **p),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match="copy must be one of None, True, False"):
            call(x, copy=copy)


def test_numpys_booleans_are_booleans() -> None:
    x = matrix()
    yes: Any = np.True_
    assert to_numpy(x, copy=yes).ctypes.data != x.ctypes.data
    assert as_tensor(x, copy=yes).data_ptr != x.ctypes.data
    refused("copy_required", as_tensor, [1], copy=np.False_)
    consumer = Consumer(to_dlpack(x, copy=yes))
    assert consumer.data != x.ctypes.data
    consumer.release()


@pytest.mark.parametrize("name", ["readonly", "immutable", "grad", "layout"])
@pytest.mark.parametrize("value", [np.array(["share", "any"]), 0, True, b"share"])
def test_other_policies_are_text(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be one of"):
        to_numpy(matrix(), **{name: value})


def test_a_stream_is_a_number_also_where_none_is_needed() -> None:
    """A wrong argument is wrong on every device, not only on the one that would look at it."""
    for stream in ("x", 1.5, object()):
        for call in (from_dlpack, to_dlpack, to_numpy):
            with pytest.raises(ArgumentError, match="stream must be"):
                call(matrix(), stream=stream)
    assert from_dlpack(matrix(), stream=np.int64(3)).shape == (4, 6)


def test_layout_contiguous() -> None:
    x = matrix()
    assert convert(x.T, "dlbridge", layout="contiguous").is_contiguous
    assert convert(x, "dlbridge", layout="contiguous", copy=False).data_ptr == x.ctypes.data
    assert convert(x.T, "dlbridge", layout="any").data_ptr == x.ctypes.data


def test_a_refusal_says_call_cause_and_cure() -> None:
    x = ModernProducer(describe(matrix(), device=(CUDA, 0)))
    text = refused("device", to_numpy, x)
    for word in ("to_numpy", "float32[4, 6]", "cuda:0", "copy it"):
        assert word in text


def test_a_consumer_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlbridge.frameworks.numpy import NumPy

    def give(self: object, *args: object) -> None:
        raise ZeroDivisionError("its own reason")

    monkeypatch.setattr(NumPy, "give", give)
    capsule = ModernProducer(matrix()).__dlpack__(max_version=(1, 0))  # C gives NumPy all else
    text = refused("consumer", to_numpy, capsule)
    assert "its own reason" in text


def test_values_of_a_dtype_with_lanes_stay_a_tensor() -> None:
    x = matrix()
    four = ModernProducer(describe(x, dtype=(2, 32, 4), shape=(6,), strides=(1,)))
    assert convert(four, "dlbridge").dtype.lanes == 4
    refused("lanes", to_numpy, four)


# ---- explain -----------------------------------------------------------------------------------


def test_explain_copies_nothing() -> None:
    x = matrix()
    before = dlbridge._core.native.allocator_statistics()["bytes_in_use"]
    receipt = explain(x, "dlbridge", copy=True)
    assert (receipt.copied_by, receipt.why) == ("dlbridge", "requested")
    assert dlbridge._core.native.allocator_statistics()["bytes_in_use"] == before


def test_explain_raises_what_convert_would() -> None:
    gpu = ModernProducer(describe(matrix(), device=(CUDA, 0)))
    refused("device", explain, gpu, "numpy")
    refused("strides", explain, matrix().T, "dlbridge", layout="contiguous", copy=False)
    vector = ModernProducer(describe(matrix(), dtype=(2, 32, 4), shape=(6,), strides=(1,)))
    refused("lanes", explain, vector, "numpy", copy=True)


def test_explain_does_not_consume_a_capsule() -> None:
    capsule = Producer(matrix()).capsule()
    with pytest.raises(ArgumentError, match="only once"):
        explain(capsule, "numpy")
    assert as_tensor(capsule).shape == (4, 6)


def test_explain_knows_when_nothing_is_to_be_done() -> None:
    x = matrix()
    assert explain(x, "numpy").route == "identity"
    assert explain(x, "numpy").shared


def test_a_mask_inside_nested_numbers_is_not_dropped() -> None:
    """numpy.asarray of a list takes the data of a masked array and forgets the mask."""
    rows = [np.ma.array([1.0, 2.0], mask=[True, False]), [3.0, 4.0]]
    with pytest.raises(ExchangeError) as caught:
        dlbridge.as_tensor(rows)
    assert caught.value.reason == "masked"


# ---- 64-bit numbers to consumers without them --------------------------------------------------

WIDE = [
    ("int64", "int32"),
    ("uint64", "uint32"),
    ("float64", "float32"),
    ("complex128", "complex64"),
]


@pytest.mark.parametrize(("wide", "narrow"), WIDE)
def test_a_refusal_of_64_bits_names_the_ways_out(wide: str, narrow: str) -> None:
    pytest.importorskip("jax")
    with pytest.raises(
        ExchangeError, match=rf'jax_enable_x64.*narrow="checked".* as {narrow} \[dtype\]$'
    ):
        dlbridge.to_jax(np.arange(3, dtype=wide))


@pytest.mark.parametrize(("wide", "narrow"), WIDE)
def test_numbers_are_narrowed_where_that_is_asked_for(wide: str, narrow: str) -> None:
    pytest.importorskip("jax")
    x = np.arange(24, dtype=wide).reshape(4, 6)[:, ::2]
    foreseen = dlbridge.explain(x, "jax", narrow="checked")
    with dlbridge.receipts() as log:
        made = dlbridge.convert(x, "jax", narrow="checked")
    assert (str(made.dtype), made.tolist()) == (narrow, x.tolist())
    for receipt in (foreseen, log[0]):
        assert (receipt.copied_by, receipt.why, receipt.dtype) == ("dlbridge", "dtype", narrow)
    with pytest.raises(ExchangeError, match="copy=False forbids"):
        dlbridge.to_jax(x, narrow="checked", copy=False)
    same = dlbridge.to_numpy(dlbridge.from_dlpack(x), narrow="checked")
    assert same.ctypes.data == x.ctypes.data


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2**31, "int64"), (-(2**31) - 1, "int64"), (2**32, "uint64"), (1e300, "float64")],
)
def test_values_that_do_not_fit_are_not_narrowed(value: Any, dtype: str) -> None:
    pytest.importorskip("jax")
    with pytest.raises(ExchangeError, match="does not fit") as caught:
        dlbridge.to_jax(np.array([0, value], dtype), narrow="checked")
    assert caught.value.reason == "dtype"


@pytest.mark.parametrize("wide", ["float64", "float32"])
@pytest.mark.parametrize("narrow", ["float32", "float16"])
def test_strided_numbers_are_rounded_as_numpy_rounds_them(wide: str, narrow: str) -> None:
    """Of any layout, each number its own; what has no finite number there is refused."""
    x = np.linspace(-3, 3, 48).reshape(6, 8).astype(wide)
    for view in (x, x.T, x[::-1, ::3], x[0, 0], x[:0], np.broadcast_to(x[0], (4, 8))):
        made = dlbridge.to_numpy(view, dtype=narrow)
        assert made.dtype == narrow
        assert made.shape == view.shape
        np.testing.assert_array_equal(made, view.astype(narrow))
        assert wide == narrow or not np.shares_memory(made, view)
    if wide != narrow:
        with pytest.raises(ExchangeError, match="does not fit") as caught:
            dlbridge.to_numpy(np.array([1, np.finfo(wide).max], wide), dtype=narrow)
        assert caught.value.reason == "dtype"


def test_nan_and_infinity_survive_narrowing() -> None:
    pytest.importorskip("jax")
    made = dlbridge.to_jax(np.array([np.nan, np.inf, -np.inf]), narrow="checked")
    assert np.array_equal(np.asarray(made), [np.nan, np.inf, -np.inf], equal_nan=True)


# ---- names and advice --------------------------------------------------------------------------

COLUMNS = "to convert_tree for a dict of its columns"


@pytest.mark.parametrize(("name", "framework"), [("pytorch", "torch"), ("tf", "tensorflow")])
def test_targets_have_the_names_that_users_give_them(name: str, framework: str) -> None:
    pytest.importorskip(framework)
    x = np.ones(3, "f4")
    assert type(dlbridge.convert(x, name)) is type(dlbridge.convert(x, framework))
    assert dlbridge.explain(x, name).target == framework
    assert type(dlbridge.convert_tree([x], name)[0]) is type(dlbridge.convert(x, framework))


@pytest.mark.parametrize(
    ("module", "attribute", "accessor"),
    [
        ("dask.array.core", "compute", "x.compute()"),
        ("h5py._hl.dataset", "shape", "x[:]"),
        ("h5py._hl.group", "keys", "x[name][:]"),
        ("pandas.core.frame", "itertuples", f"x.to_numpy(), or a table {COLUMNS}"),
        ("polars.dataframe.frame", "get_columns", f"x.to_numpy(), or a table {COLUMNS}"),
        ("polars.lazyframe.frame", "collect", f"x.collect(), a table, {COLUMNS}"),
        ("xarray.core.dataarray", "data", "x.data"),
        ("xarray.core.dataset", "data_vars", "x[name].data"),
        ("zarr.core.array", "shape", "x[:]"),
    ],
)
def test_holders_of_a_tensor_are_refused_with_the_way_to_it(
    module: str, attribute: str, accessor: str
) -> None:
    x = type("Holder", (), {"__module__": module, attribute: None})()
    for call in (dlbridge.from_dlpack, dlbridge.as_tensor, dlbridge.to_numpy):
        with pytest.raises(UnsupportedTypeError) as caught:
            call(x)
        assert str(caught.value).endswith(f"no buffer; pass {accessor}")
    with pytest.raises(UnsupportedTypeError) as caught:
        dlbridge.convert_tree({"a": x}, "numpy")
    assert f"at ['a'] is neither a tensor, a container nor plain data; pass {accessor};" in str(
        caught.value
    )


@pytest.mark.parametrize("module", ["polars.expr.expr", "pandas.core.groupby.generic"])
def test_what_holds_no_tensor_gets_no_advice_to_take_one_out(module: str) -> None:
    """A query, a group: no method of theirs gives an array."""
    x = type("Query", (), {"__module__": module})()
    with pytest.raises(UnsupportedTypeError, match=r"no buffer$"):
        dlbridge.from_dlpack(x)


def test_the_advice_works_for_what_users_have() -> None:
    """Sparse matrices, files, sets and ranges."""
    sparse = pytest.importorskip("scipy.sparse")
    for x in (sparse.csr_matrix(np.eye(2)), sparse.coo_array(np.eye(2))):
        with pytest.raises(UnsupportedTypeError, match=r"; pass x\.toarray\(\)$"):
            dlbridge.from_dlpack(x)
        assert dlbridge.from_dlpack(x.toarray()).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(UnsupportedTypeError, match=r"; as_tensor takes list\(x\)$"):
        dlbridge.as_tensor(range(3))
    with pytest.raises(UnsupportedTypeError, match="; a set has no order: put what is in it into"):
        dlbridge.from_dlpack({1, 2})


def test_what_is_sparse_or_a_model_in_tensorflow_gets_advice_that_works() -> None:
    tf = pytest.importorskip("tensorflow")
    cases = {
        r"pass tf\.sparse\.to_dense\(x\)": (tf.sparse.from_dense([1.0]), tf.sparse.to_dense),
        r"pass x\.to_tensor\(\)": (tf.ragged.constant([[1.0]]), lambda x: x.to_tensor()),
        r"pass tf\.convert_to_tensor\(x\)": (
            tf.IndexedSlices(tf.ones(1), tf.constant([0]), tf.constant([1])),
            tf.convert_to_tensor,
        ),
    }
    for words, (x, way) in cases.items():
        with pytest.raises(ExchangeError, match=words):
            dlbridge.from_dlpack(x)
        assert dlbridge.to_numpy(way(x)).ravel().tolist() == [1.0]

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable([2.0])

    with pytest.raises(UnsupportedTypeError, match=r"converts the tensors of x\.variables$"):
        dlbridge.from_dlpack(Model())
    assert dlbridge.convert_tree(Model().variables, "numpy")[0].tolist() == [2.0]


def test_a_dataset_of_h5py_is_such(tmp_path: Any) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones(3)
        with pytest.raises(UnsupportedTypeError, match=r"pass x\[:\]"):
            dlbridge.from_dlpack(file["x"])
        with pytest.raises(UnsupportedTypeError, match=r"pass x\[name\]\[:\]"):
            dlbridge.from_dlpack(file)
        assert dlbridge.from_dlpack(file["x"][:]).tolist() == [1, 1, 1]


# ---- another dtype -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [("int64", "float32"), ("float64", "float32"), ("uint8", "int64"), ("bool", "int32")],
)
def test_a_cast_is_made_where_it_is_asked_for(source: str, target: str) -> None:
    pytest.importorskip("torch")
    x = np.array([0, 1, 1], source)
    foreseen = dlbridge.explain(x, "torch", dtype=target)
    with dlbridge.receipts() as log:
        made = dlbridge.to_torch(x, dtype=target)
    assert str(made.dtype) == f"torch.{target}"
    assert made.tolist() == [0, 1, 1]
    for receipt in (*log, foreseen):
        assert (receipt.copied_by, receipt.why, receipt.dtype) == ("dlbridge", "dtype", target)
    assert dlbridge.to_torch(made, dtype=target).data_ptr() == made.data_ptr()
    with pytest.raises(ExchangeError, match="copy=False forbids") as caught:
        dlbridge.to_torch(x, dtype=target, copy=False)
    assert caught.value.reason == "dtype"


@pytest.mark.parametrize(
    ("value", "target", "text"),
    [
        (1.5, "int32", "cannot assign"),
        (300, "uint8", "the value 300 does not fit"),
        (-1, "uint8", "the value -1 does not fit"),
        (1j, "float64", "cannot assign"),
    ],
)
def test_a_cast_loses_no_more_than_precision(value: Any, target: str, text: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ExchangeError, match=f"^to_torch: {text}") as caught:
        dlbridge.to_torch(np.array([value]), dtype=target)
    assert caught.value.reason == "dtype"


LOST: list[tuple[Any, str, str]] = [
    (1e300, "float64", "float32"),
    (-1e300, "float64", "float16"),
    (7e4, "float32", "float16"),
    (1e300, "complex128", "complex64"),
    (2**53 + 1, "int64", "float32"),
    (2**53 + 1, "int64", "float64"),
    (2**64 - 1, "uint64", "float64"),
    (-(2**24) - 1, "int32", "float32"),
    (2049, "int16", "float16"),
    (65535, "uint16", "float16"),
    (257, "int32", "bfloat16"),
    (1e39, "float64", "bfloat16"),
    (1e3, "float32", "float8_e4m3fn"),
    (np.inf, "float32", "float8_e4m3fn"),
    (8.0, "float32", "float4_e2m1fn"),
    (np.nan, "float32", "float4_e2m1fn"),
]
KEPT: list[tuple[Any, str, str]] = [
    (-(2**63), "int64", "float32"),
    (2**63, "uint64", "float32"),
    (2**24 + 2, "int64", "float32"),
    (2048, "int16", "float16"),
    (0.1, "float64", "float32"),
    (np.inf, "float64", "float16"),
    (-np.inf, "float32", "bfloat16"),
    (np.nan, "float64", "float32"),
    (448.0, "float32", "float8_e4m3fn"),
    (6.0, "float32", "float4_e2m1fn"),
    (1e300, "float64", "complex128"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("value", "source", "target"), LOST)
def test_a_cast_makes_no_finite_number_infinite_and_no_integer_another(
    value: Any, source: str, target: str
) -> None:
    pytest.importorskip("ml_dtypes")
    x = np.array([[1, value, 1]], source)
    for call in (
        dlbridge.to_numpy,
        lambda x, dtype: dlbridge.convert_tree([x], "numpy", dtype=dtype),
    ):
        with pytest.raises(
            ExchangeError, match=rf"does not fit {target}.* at \[0, 1\]; cast it .*; got "
        ) as caught:
            call(x, dtype=target)
        assert caught.value.reason == "dtype"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("value", "source", "target"), KEPT)
def test_a_cast_rounds_and_keeps_what_fits(value: Any, source: str, target: str) -> None:
    pytest.importorskip("ml_dtypes")
    x = np.array([value, 1], source)
    made = dlbridge.from_dlpack(dlbridge.to_numpy(x, dtype=target))
    assert made.dtype == target
    expected = np.array([value, 1], source).astype(made.dtype.numpy)
    assert np.array_equal(
        dlbridge.to_numpy(made).astype(complex), expected.astype(complex), equal_nan=True
    )


def test_asarray_takes_a_dtype_as_the_array_api_does() -> None:
    x = np.arange(3, dtype="int16")
    shared = dlbridge.asarray(x)
    assert shared.data_ptr == x.ctypes.data
    assert dlbridge.asarray(x, dtype="int16", copy=False).data_ptr == x.ctypes.data
    assert dlbridge.asarray(shared) is shared
    for copied in (dlbridge.asarray(x, copy=True), dlbridge.asarray(x, "int16", copy=True)):
        assert (copied.tolist(), copied.dtype) == ([0, 1, 2], "int16")
        assert copied.data_ptr != x.ctypes.data
    assert dlbridge.asarray([1, 2.5], "f32").dtype == "float32"
    assert dlbridge.asarray(x, "float32", copy=True).tolist() == [0, 1, 2]
    with pytest.raises(ExchangeError, match="copy=False forbids"):
        dlbridge.asarray(x, "float32", copy=False)
    with pytest.raises(ExchangeError, match=r"300 does not fit uint8"):
        dlbridge.asarray([300], "uint8")
    with pytest.raises(ArgumentError, match=r"^asarray: dtype='flot'"):
        dlbridge.asarray([1], "flot")


def test_a_cast_to_no_dtype_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^to_numpy: dtype='flot32': .*unknown name"):
        dlbridge.to_numpy(np.ones(2), dtype="flot32")
    with pytest.raises(ArgumentError, match=r"^to_numpy: dtype='flot32': .*unknown name"):
        dlbridge.convert(np.ones(2), "numpy", dtype="flot32")
    with pytest.raises(ArgumentError, match=r"^convert_tree: dtype='flot32': .*unknown name"):
        dlbridge.convert_tree({}, "numpy", dtype="flot32")
    with pytest.raises(UnsupportedTypeError, match=r"^to_numpy: dtype=\[1\]: "):
        dlbridge.convert(np.ones(2), "numpy", dtype=[1])


def test_a_tree_is_cast() -> None:
    pytest.importorskip("torch")
    made = dlbridge.convert_tree({"x": np.ones(2)}, "torch", dtype="float32")
    assert str(made["x"].dtype) == "torch.float32"
