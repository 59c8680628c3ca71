"""The C exchange table: ours in the hands of others, and theirs in ours."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlpack_peers import (
    CUDA,
    IS_COPIED,
    READ_ONLY,
    SUBBYTE_PADDED,
    TABLE,
    VERSIONED,
    Consumer,
    Description,
    DLTensor,
    ExchangeTable,
    ModernProducer,
    NativePeer,
    Producer,
    Table,
    capsule_address,
    capsule_name,
    describe,
    lend,
    make_capsule,
    make_struct,
)

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ExchangeError, UnsupportedTypeError


def matrix() -> np.ndarray[Any, Any]:
    """Return float32[3, 4], 0 to 11."""
    return np.arange(12, dtype=np.float32).reshape(3, 4)


OURS = capsule_address(dlbridge.Tensor.__dlpack_c_exchange_api__)


def from_py(peer: NativePeer, x: object, table: int = OURS) -> Consumer:
    """Have C code take `x` out through a table."""
    out = ctypes.c_void_p()
    assert peer.held.peer_table_from_py(table, x, ctypes.byref(out)) == 0
    return Consumer(make_capsule(out.value or 0, VERSIONED))


def to_py(peer: NativePeer, address: int, table: int = OURS) -> Any:
    """Have C code make an object of a managed tensor, which the table takes over."""
    out = ctypes.c_void_p()
    assert peer.held.peer_table_to_py(table, address, ctypes.byref(out)) == 0
    result = ctypes.cast(out, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(result))
    return result


# ---- ours ----------------------------------------------------------------------------------------


def test_our_table_is_on_the_type_and_complete() -> None:
    """Looked up on the type, never on the object; all five functions; no older table behind it."""
    capsule = dlbridge.Tensor.__dlpack_c_exchange_api__
    assert capsule_name(capsule) == TABLE.decode()
    table = ExchangeTable.from_address(OURS)
    assert (table.major, table.minor) == (1, 3)
    assert not table.previous
    for function in ("allocate", "from_py", "to_py", "borrow", "stream"):
        assert getattr(table, function), function


def test_subclasses_carry_the_same_table() -> None:
    class Named(dlbridge.Tensor):
        __slots__ = ()

    assert capsule_address(Named.__dlpack_c_exchange_api__) == OURS


def test_a_tensor_goes_out_through_the_table_as_it_is(native_peer: NativePeer) -> None:
    array = matrix()
    tensor = dlbridge.from_dlpack(array)[::2, 1:]
    consumer = from_py(native_peer, tensor)
    assert consumer.version == (1, 3)
    assert (consumer.data, consumer.byte_offset) == (array.ctypes.data + 4, 0)
    assert (consumer.shape, consumer.strides) == ((2, 3), (8, 1))
    assert consumer.has_deleter
    del tensor
    assert np.array_equal(consumer.values(), array[::2, 1:])
    consumer.release()


def test_flags_that_belong_to_the_memory_go_out_and_those_of_one_export_do_not(
    native_peer: NativePeer,
) -> None:
    what = describe(np.arange(4, dtype=np.uint8), dtype=(1, 4, 1))
    tensor = dlbridge.from_dlpack(ModernProducer(what.but(flags=IS_COPIED | SUBBYTE_PADDED)))
    consumer = from_py(native_peer, tensor)
    assert consumer.flags == SUBBYTE_PADDED
    consumer.release()


def test_read_only_memory_does_not_go_out_through_the_table(native_peer: NativePeer) -> None:
    """The struct has a flag for it, but tvm_ffi, which reads tables, drops it; torch does too."""
    tensor = dlbridge.from_dlpack(ModernProducer(describe(matrix(), flags=READ_ONLY)))
    out = ctypes.c_void_p()
    with pytest.raises(ExchangeError) as caught:
        native_peer.held.peer_table_from_py(OURS, tensor, ctypes.byref(out))
    assert caught.value.reason == "readonly"
    assert not out.value
    assert tensor.buffer.refcount == 1


def test_a_managed_tensor_comes_in_through_the_table(native_peer: NativePeer) -> None:
    """The table takes it over: one deleter call, when the object dies."""
    loan = lend(describe(matrix(), flags=READ_ONLY), versioned=True)
    tensor = to_py(native_peer, loan.address)
    assert type(tensor) is dlbridge.Tensor
    assert np.array_equal(np.asarray(tensor), matrix())
    assert tensor.readonly
    assert loan.deleted == 0
    del tensor
    assert loan.deleted == 1


def test_the_borrowed_view_is_the_tensor_itself(native_peer: NativePeer) -> None:
    """Nothing is allocated, and nothing is to be released."""
    tensor = dlbridge.from_dlpack(matrix())[1:]
    view = DLTensor()
    before = native.live()
    assert native_peer.held.peer_table_borrow(OURS, tensor, ctypes.byref(view)) == 0
    assert native.live() == before
    assert view.data == tensor.data_ptr
    assert (tuple(view.shape[:2]), tuple(view.strides[:2])) == ((2, 4), (4, 1))
    assert (view.code, view.bits, view.lanes, view.byte_offset) == (2, 32, 1, 0)


def test_a_borrowed_view_of_read_only_memory_is_refused(native_peer: NativePeer) -> None:
    """A bare DLTensor has no flags: the kernel that gets it would write."""
    tensor = dlbridge.from_dlpack(ModernProducer(describe(matrix(), flags=READ_ONLY)))
    with pytest.raises(ExchangeError) as caught:
        native_peer.held.peer_table_borrow(OURS, tensor, ctypes.byref(DLTensor()))
    assert caught.value.reason == "readonly"


@pytest.mark.parametrize("other", [None, 3, "tensor", np.zeros(3)], ids=repr)
def test_our_table_refuses_objects_that_are_not_ours(
    native_peer: NativePeer, other: object
) -> None:
    """-1 with a Python exception set, which ctypes raises here."""
    out = ctypes.c_void_p()
    with pytest.raises((TypeError, BufferError), match=type(other).__name__):
        native_peer.held.peer_table_from_py(OURS, other, ctypes.byref(out))
    with pytest.raises((TypeError, BufferError), match=type(other).__name__):
        native_peer.held.peer_table_borrow(OURS, other, ctypes.byref(DLTensor()))
    assert not out.value


def test_the_work_stream_of_the_cpu_is_null(native_peer: NativePeer) -> None:
    """Written, not left as it was: Paddle leaves rubbish there."""
    out = ctypes.c_void_p(119)
    assert native_peer.held.peer_table_stream(OURS, 1, 0, ctypes.byref(out)) == 0
    assert out.value is None


@pytest.mark.parametrize(
    "what",
    [
        Description(shape=(3, 4), strides=(4, 1)),
        Description(shape=(3, 4), strides=None, dtype=(4, 16, 1)),
        Description(shape=(), strides=(), dtype=(0, 64, 1)),
        Description(shape=None, strides=None, ndim=0),
        Description(shape=(0, 5), strides=(5, 1)),
        Description(shape=(5,), dtype=(17, 4, 1)),
        Description(shape=(2, 3), strides=(1, 2), byte_offset=8, data=0x1000),
    ],
    ids=["plain", "bfloat16", "0-d", "0-d without pointers", "empty", "float4", "odd prototype"],
)
@pytest.mark.parametrize("gil", [True, False])
def test_our_allocator_gives_fresh_aligned_memory(
    native_peer: NativePeer, what: Description, gil: bool
) -> None:
    """Of the prototype, only shape, dtype and device count; C++ calls this without the GIL."""
    struct, *arrays = make_struct(what, versioned=True)
    out, text = ctypes.c_void_p(), ctypes.create_string_buffer(256)
    function = (native_peer.held if gil else native_peer.free).peer_table_allocate
    status = function(ctypes.c_void_p(OURS), ctypes.byref(struct.dl), ctypes.byref(out), text)
    assert (status, text.value) == (0, b"")
    consumer = Consumer(make_capsule(out.value or 0, VERSIONED))
    assert len(arrays) == 2
    assert consumer.dtype == what.dtype
    assert (consumer.shape or ()) == (what.shape or ())
    assert consumer.strides is not None
    assert consumer.flags == 0
    assert consumer.data % 64 == 0
    if consumer.data and what.shape != (0, 5):
        ctypes.memset(consumer.data, 0x11, 2)
    consumer.release()


@pytest.mark.parametrize(
    ("what", "word"),
    [
        (Description(device=(CUDA, 0)), "CPU"),
        (Description(shape=(-1,)), "shape"),
        (Description(shape=(2**62, 4), strides=(4, 1)), "overflow"),
        (Description(dtype=(2, 33, 1)), "dtype"),
        (Description(ndim=-1), "ndim"),
        (Description(shape=None, strides=None, ndim=2), "shape"),
        (Description(shape=(2**55,)), "memory"),
    ],
    ids=["device", "shape", "overflow", "dtype", "ndim", "NULL shape", "too large"],
)
def test_our_allocator_reports_through_set_error_and_sets_no_exception(
    native_peer: NativePeer, what: Description, word: str
) -> None:
    """It may be called without the GIL, hence the callback: kind and message, -1, nothing given."""
    struct, *arrays = make_struct(what, versioned=True)
    out, text = ctypes.c_void_p(), ctypes.create_string_buffer(256)
    before = native.live()
    status = native_peer.held.peer_table_allocate(
        OURS, ctypes.byref(struct.dl), ctypes.byref(out), text
    )
    assert len(arrays) == 2
    assert status == -1
    assert not out.value
    kind, _, message = text.value.decode().partition(": ")
    assert kind.endswith("Error")
    assert word in message
    assert native.live() == before


def test_the_table_refuses_a_malformed_struct_and_releases_it(native_peer: NativePeer) -> None:
    """Stolen is stolen, also where nothing comes of it."""
    for changes, reason in (
        ({"shape": (-1,), "strides": (1,)}, "shape"),
        ({"version": (2, 0)}, "version"),
        ({"dtype": (99, 0, 1)}, "dtype"),
    ):
        loan = lend(describe(matrix(), **changes), versioned=True)
        with pytest.raises(ExchangeError) as caught:
            native_peer.held.peer_table_to_py(OURS, loan.address, ctypes.byref(ctypes.c_void_p()))
        assert caught.value.reason == reason
        assert loan.deleted == 1


def test_churn_in_c_leaves_nothing_behind(native_peer: NativePeer) -> None:
    tensor = dlbridge.from_dlpack(matrix())
    assert native_peer.held.peer_table_churn(OURS, tensor, 100_000) == 0
    assert tensor.buffer.refcount == 1


def test_other_threads_may_use_the_table_at_the_same_time(native_peer: NativePeer) -> None:
    tensor = dlbridge.from_dlpack(matrix())
    results: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(native_peer.held.peer_table_churn(OURS, tensor, 2000))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 8
    assert tensor.buffer.refcount == 1


# ---- ours, used by tvm_ffi -----------------------------------------------------------------------


def test_tvm_ffi_takes_our_tensors_without_a_copy(framework: Callable[[str], Any]) -> None:
    tvm_ffi = framework("tvm_ffi")
    tensor = dlbridge.from_dlpack(matrix())
    theirs = tvm_ffi.from_dlpack(tensor)
    assert theirs.data_ptr() == tensor.data_ptr
    assert tuple(theirs.shape) == (3, 4)
    assert np.array_equal(np.from_dlpack(theirs), matrix())
    pointer = tensor.data_ptr
    del tensor
    assert theirs.data_ptr() == pointer
    assert np.array_equal(np.from_dlpack(theirs), matrix())


def test_our_tensors_are_arguments_and_results_of_tvm_ffi_functions(
    framework: Callable[[str], Any],
) -> None:
    """An argument is borrowed for the call; a result comes back through our `to_py`."""
    tvm_ffi = framework("tvm_ffi")
    seen = []

    def look(x: Any) -> Any:
        seen.append((tuple(x.shape), str(x.dtype)))
        return x

    tensor = dlbridge.from_dlpack(matrix())
    result = tvm_ffi.convert(look)(tensor)
    assert seen == [((3, 4), "float32")]
    assert type(result) is dlbridge.Tensor
    assert result.data_ptr == tensor.data_ptr
    assert np.array_equal(np.asarray(result), matrix())


def test_read_only_memory_does_not_come_back_writable_from_tvm_ffi(
    framework: Callable[[str], Any],
) -> None:
    """The mark is in the managed tensor; who drops it on the way must not be given the memory."""
    tvm_ffi = framework("tvm_ffi")
    tensor = dlbridge.from_dlpack(ModernProducer(describe(matrix(), flags=READ_ONLY)))
    try:
        result = tvm_ffi.convert(lambda x: x)(tensor)
    except (BufferError, ValueError):
        return
    assert result.readonly


# ---- theirs --------------------------------------------------------------------------------------


def test_a_type_with_nothing_but_a_table_is_a_tensor() -> None:
    table = Table()
    x = table.make_type()(Producer(matrix()))
    for take in (dlbridge.from_dlpack, dlbridge.as_tensor, dlbridge.to_numpy):
        table.used.clear()
        result = take(x)
        assert np.array_equal(np.asarray(result), matrix())
        assert table.used == ["from_py"]
        del result
    assert all(loan.deleted == 1 for loan in x.producer.loans)


def test_a_table_is_preferred_to_the_slower_method() -> None:
    """Both are there (torch, Paddle): the table costs a fraction."""

    def dlpack(self: Any, **keywords: object) -> object:
        raise AssertionError("the method was called although there is a table")

    table = Table()
    kind = table.make_type(__dlpack__=dlpack, __dlpack_device__=lambda self: (1, 0))
    tensor = dlbridge.from_dlpack(kind(Producer(matrix())))
    assert np.array_equal(np.asarray(tensor), matrix())


def test_a_table_on_the_object_instead_of_its_type_is_no_table() -> None:
    """The standard puts it on the type; anything may stand on an object."""

    class Plain:
        pass

    x = Plain()
    x.__dlpack_c_exchange_api__ = Table().capsule  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedTypeError):
        dlbridge.from_dlpack(x)


def test_a_table_without_borrow_serves_as_well() -> None:
    """`dltensor_from_py_object_no_sync` may be NULL."""
    x = Table(borrow=0).make_type()(Producer(matrix()))
    assert np.array_equal(np.asarray(native.take_table(x, x.__dlpack_c_exchange_api__)), matrix())
    assert np.array_equal(np.asarray(dlbridge.from_dlpack(x)), matrix())


@pytest.mark.fast(lambda function: function in ("from_py", "to_py"))
@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("allocate", "managed_tensor_allocator"),
        ("from_py", "managed_tensor_from_py_object_no_sync"),
        ("to_py", "managed_tensor_to_py_object_no_sync"),
        ("stream", "current_work_stream"),
    ],
)
@pytest.mark.subprocess
def test_a_table_without_a_function_that_dlpack_demands_is_refused_by_its_name(
    function: str, name: str, run_python: Callable[..., Any]
) -> None:
    """In a process of its own: whoever calls NULL ends it."""
    said = run_python(f"""
        import numpy as np
        from dlpack_peers import Producer, Table, describe
        import dlbridge
        from dlbridge._core import native

        table = Table({function}=0)
        x = table.make_type()(Producer(describe(np.zeros(3))))
        ours = dlbridge.from_dlpack(np.zeros(3))
        for act in (
            lambda: dlbridge.from_dlpack(x),
            lambda: native.take_table(x, table.capsule),
            lambda: native.give_table(ours, table.capsule),
            lambda: native.allocate_table(table.capsule, (3,), (2, 32, 1), (1, 0)),
            lambda: native.table_stream(table.capsule, (2, 0)),
        ):
            try:
                act()
            except dlbridge.ExchangeError as error:
                assert error.reason == "producer", error.reason
                assert {name!r} in str(error), str(error)
            else:
                raise AssertionError("taken")
        assert table.used == []
        print("refused")
    """)
    assert said.check().strip() == "refused"


@pytest.mark.subprocess
def test_tables_that_lead_in_a_circle_are_refused(run_python: Callable[..., Any]) -> None:
    said = run_python("""
        import ctypes
        from dlpack_peers import Table
        from dlbridge._core import native
        from dlbridge.errors import ExchangeError

        first = Table(version=(2, 0))
        second = Table(version=(3, 0), previous=first)
        first.struct.previous = ctypes.addressof(second.struct)
        try:
            native.table_stream(first.capsule, (2, 0))
        except ExchangeError as error:
            print(error.reason)
    """)
    assert said.check().strip() == "version"


def test_a_newer_table_is_passed_over_for_the_one_behind_it() -> None:
    """Another major version is another struct; `prev_api` leads to one that we know."""
    old = Table()
    new = Table(version=(2, 0), previous=old)
    newest = Table(version=(3, 0), previous=new)
    x = newest.make_type()(Producer(matrix()))
    tensor = native.take_table(x, newest.capsule)
    assert np.array_equal(np.asarray(tensor), matrix())
    tensor = dlbridge.from_dlpack(x)
    assert np.array_equal(np.asarray(tensor), matrix())
    assert newest.used == new.used == []
    assert old.used == ["from_py", "from_py"]


def test_a_table_of_unknown_versions_only_is_not_used() -> None:
    table = Table(version=(2, 0))
    x = table.make_type()(Producer(matrix()))
    with pytest.raises(ExchangeError) as caught:
        native.take_table(x, table.capsule)
    assert caught.value.reason == "version"
    with pytest.raises((ExchangeError, UnsupportedTypeError)):
        dlbridge.from_dlpack(x)
    assert table.used == []


def test_behind_a_table_of_unknown_versions_the_method_is_tried() -> None:
    table = Table(version=(2, 0))

    def dlpack(self: Any, *, max_version: Any = None) -> object:
        return self.producer.capsule(versioned=max_version is not None)

    kind = table.make_type(__dlpack__=dlpack, __dlpack_device__=lambda self: (1, 0))
    tensor = dlbridge.from_dlpack(kind(Producer(matrix())))
    assert np.array_equal(np.asarray(tensor), matrix())
    assert table.used == []


def test_an_exception_of_a_foreign_table_becomes_the_refusal(native_peer: NativePeer) -> None:
    table = Table(from_py=native_peer.address_of("peer_from_py_raises"))
    x = table.make_type()(Producer(matrix()))
    with pytest.raises(ValueError, match="the peer's table raises"):
        native.take_table(x, table.capsule)
    with pytest.raises(ExchangeError, match="the peer's table raises") as caught:
        dlbridge.from_dlpack(x)
    assert caught.value.reason == "producer"


@pytest.mark.parametrize("function", ["peer_from_py_gives_nothing", "peer_from_py_fails_silently"])
def test_a_foreign_table_that_gives_nothing_is_named(
    native_peer: NativePeer, function: str
) -> None:
    """Success without a tensor, or failure without an exception: both are the producer's fault."""
    table = Table(from_py=native_peer.address_of(function))
    x = table.make_type()(Producer(matrix()))
    with pytest.raises(ExchangeError, match="Peer") as caught:
        native.take_table(x, table.capsule)
    assert caught.value.reason == "producer"


def test_a_tensor_is_given_to_a_foreign_table() -> None:
    table = Table()
    tensor = dlbridge.from_dlpack(ModernProducer(describe(matrix(), flags=READ_ONLY)))
    given = native.give_table(tensor, table.capsule)
    assert isinstance(given, Consumer)
    assert table.given.pop() is given
    assert given.flags == READ_ONLY
    assert given.data == tensor.data_ptr
    assert np.array_equal(given.values(), matrix())
    given.release()


def test_a_foreign_allocator_gives_memory_for_our_tensors() -> None:
    table = Table()
    tensor = native.allocate_table(table.capsule, (3, 4), (2, 32, 1), (1, 0))
    assert tensor.shape == (3, 4)
    assert np.asarray(tensor).sum() == 0
    assert table.used == ["allocate"]


def test_the_error_of_a_foreign_allocator_is_passed_on() -> None:
    table = Table()
    with pytest.raises(MemoryError, match="NumPy's dtypes only"):
        native.allocate_table(table.capsule, (3,), (17, 4, 1), (1, 0))


@pytest.mark.parametrize(
    "capsule", [None, 3, make_capsule(0x10, VERSIONED)], ids=["None", "3", "tensor"]
)
def test_anything_but_a_table_is_refused(capsule: object) -> None:
    x = Table().make_type()(Producer(matrix()))
    with pytest.raises((TypeError, ValueError, BufferError)):
        native.take_table(x, capsule)


def test_a_malformed_struct_out_of_a_table_falls_back_to_nothing() -> None:
    """from_dlpack may try the method after the table, but never leaks what the table lent."""
    table = Table()
    x = table.make_type()(Producer(describe(matrix(), shape=(3, -4))))
    with pytest.raises(ExchangeError) as caught:
        dlbridge.from_dlpack(x)
    assert caught.value.reason == "shape"
    assert x.producer.loans
    assert all(loan.deleted == 1 for loan in x.producer.loans)


def test_torch_is_taken_through_its_table_and_given_through_it(
    framework: Callable[[str], Any],
) -> None:
    torch = framework("torch")
    theirs = torch.arange(12.0).reshape(3, 4)[:, 1:]
    tensor = native.take_table(theirs, torch.Tensor.__dlpack_c_exchange_api__)
    assert tensor.data_ptr == theirs.data_ptr()
    assert (tensor.shape, tensor.strides) == ((3, 3), (4, 1))
    back: Any = native.give_table(tensor, torch.Tensor.__dlpack_c_exchange_api__)
    assert type(back) is torch.Tensor
    assert back.data_ptr() == theirs.data_ptr()
    del tensor, theirs
    assert back.sum() == 54.0


def test_torch_allocates_for_us(framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    table = torch.Tensor.__dlpack_c_exchange_api__
    tensor = native.allocate_table(table, (2, 3), (4, 16, 1), (1, 0))
    assert (tensor.shape, tensor.dtype.triple) == ((2, 3), (4, 16, 1))
    with pytest.raises(MemoryError, match="kDLFloat4_e2m1fn"):
        native.allocate_table(table, (2,), (17, 4, 1), (1, 0))
