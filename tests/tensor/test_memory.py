"""Allocators, new memory and memory of others."""

import array
import ctypes
import gc
import mmap
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge import TensorBuffer
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    ExchangeError,
    UnsupportedTypeError,
)
from dlbridge.tensor.allocator import Allocator, CPUAllocator, ExchangeAllocator, Statistics
from dlbridge.tensor.memory import (
    empty,
    empty_like,
    from_buffer,
    full,
    full_like,
    ones,
    zeros,
)
from dlbridge.tensor.tensor import Tensor, equal


class Heap(Allocator):
    """An allocator of the user's that writes down what it is asked."""

    def __init__(self):
        super().__init__("heap")
        self.blocks = {}
        self.asked = []
        self.freed = []

    def allocate(self, nbytes, alignment):
        block = np.empty(nbytes + alignment, np.uint8)
        address = -(-block.__array_interface__["data"][0] // alignment) * alignment
        self.blocks[address] = block
        self.asked.append((nbytes, alignment))
        return address

    def deallocate(self, address, nbytes):
        self.freed.append((nbytes, self.blocks.pop(address) is not None))


# ---- new memory ----


@pytest.mark.parametrize("make", [empty, zeros, lambda *a, **k: full(a[0], 1, a[1], **k)])
@pytest.mark.parametrize("alignment", [1, 8, 64, 256, 4096])
def test_new_memory_is_compact_writable_and_aligned(make, alignment):
    tensor = make((3, 5), "float32", alignment=alignment)
    assert tensor.is_contiguous
    assert tensor.strides == (5, 1)
    assert not tensor.readonly
    assert tensor.data_ptr % max(alignment, 8) == 0
    assert tensor.buffer.kind == "allocator"
    assert isinstance(tensor.buffer, TensorBuffer)
    assert tensor.buffer.nbytes == 60


@pytest.mark.parametrize("name", ["bool", "int4", "float6_e2m3fn", "bfloat16", "float32x4"])
def test_zeros_are_zero_bits(name):
    tensor = zeros((3, 8), name)
    assert not np.asarray(tensor).any()
    assert not any(bytes(tensor.view("uint8")))


@pytest.mark.parametrize("make", [empty, zeros, ones])
def test_new_memory_without_a_dtype_has_that_of_pythons_floats(make):
    for shape in (2, (2,), [2]):
        for made in (make(shape), make(shape, None), make(shape, device="cpu"), make(shape=shape)):
            assert (made.shape, made.dtype) == ((2,), "float64")
    assert full((2,), 1.0).dtype == "float64"


@pytest.mark.parametrize("make", [empty, zeros, ones])
def test_extents_in_a_row_are_told_to_be_a_tuple(make):
    text = rf"^{make.__name__}: .*3 cannot be read .*tuple: \(2, 3\)"
    with pytest.raises(UnsupportedTypeError, match=text):
        make(2, 3)


def test_empty_is_the_same_however_it_is_called():
    """Plain calls are served in C, from the second on: by position and by name."""
    for _ in range(3):
        for made in (
            empty((2, 3), "float32"),
            empty((2, 3), dtype="float32"),
            empty((2, 3), dtype="float32", device="cpu"),
            empty((2, 3), device="cpu", dtype="float32"),
            empty((2, 3), "float32", device="cpu:0"),
            empty(shape=(2, 3), dtype="float32"),
        ):
            assert (made.shape, made.dtype, made.data_ptr % 64) == ((2, 3), "float32", 0)
        for wrong in (
            lambda: empty(),
            lambda: empty((2, 3), "float32", dtype="float32"),
            lambda: empty((2, 3), dtype="float32", devices="cpu"),
            lambda: empty((2, 3), "float32", "cpu"),
        ):
            with pytest.raises(TypeError, match=r"^empty\(\)"):
                wrong()
        assert empty((2, 3), dtype="float32", alignment=128).data_ptr % 128 == 0


def test_shapes_and_dtypes_are_what_the_frameworks_use():
    assert empty(3, np.float32).shape == (3,)
    assert empty(np.array([2, 3]).tolist(), (4, 16)).dtype == "bfloat16"
    assert empty((), int).shape == ()
    assert zeros((0, 2**56), "float64").nbytes == 0


@pytest.mark.parametrize(
    ("value", "name"),
    [(True, "bool"), (1, "int64"), (1.5, "float64"), (1j, "complex128"), (np.int8(3), "int8")],
)
def test_full_takes_the_dtype_of_its_value(value, name):
    tensor = full((2, 2), value)
    assert tensor.dtype == name
    assert tensor.tolist() == [[value] * 2] * 2


@pytest.mark.parametrize(
    ("shape", "dtype", "match"),
    [
        ((2, -1), "int8", "negative"),
        (-1, "int8", "negative"),
        ((2**31, 2**31, 2), "int8", "overflows"),
        ((2**60, 0, 2), "int8", "overflows"),
        ((2**60,), "int8", "overflows"),
        ((2**60,), "complex128", "overflows"),
        ((2**70,), "int8", "overflows"),
    ],
)
def test_impossible_shapes_are_refused_first(shape, dtype, match):
    heap = Heap()
    for make in (empty, zeros):
        for allocator in (None, heap):
            with pytest.raises(ArgumentError, match=match):
                make(shape, dtype, allocator=allocator)
    assert heap.asked == []


@pytest.mark.parametrize("alignment", [0, -8, 3, 65])
def test_an_alignment_is_a_power_of_two(alignment):
    for make in (empty, zeros):
        with pytest.raises(ArgumentError, match="power of two"):
            make(3, "int8", alignment=alignment)


@pytest.mark.parametrize("alignment", [2**63, 2**64, -(2**70), 64.0, "64", None, [64]])
def test_an_alignment_is_an_integer_that_addresses_have(alignment):
    """What C cannot take is told from here, in one kind of error."""
    makers = [
        lambda: empty(3, "int8", alignment=alignment),
        lambda: zeros(3, "int8", alignment=alignment),
        lambda: full(3, 1, alignment=alignment),
        lambda: empty_like(zeros(3, "int8"), alignment=alignment),
        lambda: CPUAllocator().allocate(8, alignment),
    ]
    for make in makers:
        with pytest.raises(ArgumentError, match="power of two"):
            make()


def test_alignments_no_memory_has_are_an_allocation_error():
    """2**62 is a power of two and a size of C; there is only no such address."""
    for make in (empty, zeros):
        with pytest.raises(AllocationError, match=f"3 bytes aligned to {2**62}"):
            make(3, "int8", alignment=2**62)
    assert empty(3, "int8", alignment=np.int64(128)).data_ptr % 128 == 0


@pytest.mark.parametrize("shape", [2.5, (2, 2.0), "ab", (None,), np.zeros(2)])
def test_extents_are_integers(shape):
    """Of new memory and of memory of others, in one kind of error."""
    with pytest.raises(ArgumentError, match="an extent must be an integer"):
        empty(shape, "int8")
    with pytest.raises(ArgumentError, match="an extent must be an integer"):
        from_buffer(bytes(8), "int8", shape)


@pytest.mark.parametrize("make", [empty, zeros])
def test_memory_that_is_not_there_is_an_allocation_error_with_its_size(make):
    with pytest.raises(AllocationError, match=f"{2**59} bytes") as caught:
        make(2**59, "int8")
    assert isinstance(caught.value, MemoryError)
    assert caught.value.reason == "memory"


def test_the_default_allocator_has_no_other_memory_than_the_cpus():
    for make in (empty, zeros):
        with pytest.raises(ExchangeError) as caught:
            make(3, "int8", device="rocm:0")
        assert caught.value.reason == "device"


def test_memory_like_that_of_a_tensor_takes_an_allocator():
    heap = Heap()
    tensor = full((2, 3), 1.5, "bfloat16").T
    other = full_like(tensor, 1.5, allocator=heap)
    assert equal(other, tensor)
    assert other.is_contiguous
    assert heap.asked == [(12, 64)]


# ---- allocators ----


def test_statistics_of_the_native_allocator_count_bytes_and_blocks():
    before = CPUAllocator().statistics()
    tensor = empty(1000, "int16")
    during = CPUAllocator().statistics()
    assert during.bytes_in_use == before.bytes_in_use + 2000
    assert during.count == before.count + 1
    assert during.total == before.total + 1
    assert during.peak_bytes_in_use >= during.bytes_in_use
    del tensor
    assert CPUAllocator().statistics()[::2] == before[::2]


def test_the_native_allocator_hands_out_addresses_too():
    allocator = CPUAllocator()
    address = allocator.allocate(100, 256)
    assert address % 256 == 0
    ctypes.memset(address, 1, 100)
    allocator.deallocate(address, 100)


@pytest.mark.parametrize("nbytes", [2**59, 2**60, 2**70])
def test_sizes_beyond_64_bits_are_not_there_either(nbytes):
    """The caller of an allocator asks in bytes, and gets one error however many."""
    with pytest.raises(AllocationError, match=f"{nbytes} bytes"):
        CPUAllocator().allocate(nbytes)


def test_memory_goes_back_once_when_the_last_view_or_export_dies():
    heap = Heap()
    tensor = full((4, 4), 7, "int32", allocator=heap)
    assert heap.asked == [(64, 64)]
    assert heap.statistics() == Statistics(64, 64, 1, 1)
    view, capsule = tensor[1:, 2], tensor.__dlpack__(max_version=(1, 3))
    del tensor
    array_of_it = np.asarray(view)
    del view
    gc.collect()
    assert heap.freed == []
    assert array_of_it.tolist() == [7, 7, 7]
    del array_of_it
    assert heap.freed == []
    del capsule
    gc.collect()
    assert heap.freed == [(64, True)]
    assert heap.statistics() == Statistics(0, 64, 0, 1)
    assert "'heap': 0 bytes" in repr(heap)


def test_tensors_without_bytes_ask_for_no_memory():
    heap = Heap()
    assert zeros((0, 3), "int8", allocator=heap).tolist() == []
    assert heap.asked == heap.freed == []


class Broken(Allocator):
    """Returns or raises what it is told to."""

    def __init__(self, answer):
        super().__init__("broken")
        self.answer = answer
        self.freed = []

    def allocate(self, nbytes, alignment):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def deallocate(self, address, nbytes):
        self.freed.append(address)


@pytest.mark.parametrize("answer", [0, MemoryError("no more")])
def test_an_allocator_without_memory_is_named_with_the_size(answer):
    allocator = Broken(answer)
    with pytest.raises(AllocationError, match="'broken' cannot give 12 bytes aligned to 64"):
        empty(3, "float32", allocator=allocator)
    assert allocator.freed == []
    assert allocator.statistics() == Statistics()


def test_a_misaligned_block_is_refused_and_given_back():
    allocator = Broken(4096 + 4)
    with pytest.raises(AllocationError, match="0x1004"):
        empty(3, "float32", allocator=allocator)
    gc.collect()
    assert allocator.freed == [4100]
    assert allocator.statistics().bytes_in_use == 0


def test_other_errors_of_an_allocator_pass():
    with pytest.raises(KeyError):
        empty(3, "float32", allocator=Broken(KeyError("x")))


def test_an_allocator_must_say_how():
    with pytest.raises(NotImplementedError):
        empty(3, "int8", allocator=Allocator("none"))
    with pytest.raises(NotImplementedError):
        Allocator("none").deallocate(1, 1)


def test_statistics_are_exact_under_threads():
    heap = Heap()

    def work():
        for _ in range(200):
            kept = [empty(10, "int8", allocator=heap) for _ in range(5)]
            del kept

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heap.statistics()[::2] == (0, 0)
    assert heap.statistics().total == len(heap.asked) == len(heap.freed) == 8000
    assert 50 <= heap.statistics().peak_bytes_in_use <= 400


def test_a_frameworks_own_allocator(framework):
    source = framework("torch").Tensor
    if not hasattr(source, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no exchange table")
    for table in (source, source.__dlpack_c_exchange_api__):
        allocator = ExchangeAllocator(table)
        tensor = full((3, 4), 2, "float32", allocator=allocator, alignment=16)
        assert tensor.tolist() == [[2.0] * 4] * 3
        assert type(tensor) is Tensor
        assert allocator.statistics() == Statistics(48, 48, 1, 1)
        address = allocator.allocate(100, 16)
        ctypes.memset(address, 1, 100)
        allocator.deallocate(address, 100)
        reference, view = weakref.ref(tensor), tensor[1]
        del tensor
        assert reference() is None
        assert allocator.statistics().count == 1
        assert view.tolist() == [2.0] * 4
        del view
        assert allocator.statistics() == Statistics(0, 48, 0, 1)
        assert zeros((0, 3), "int8", allocator=allocator).nbytes == 0


def test_a_table_without_memory_is_named_with_the_size():
    """As every other allocator; the framework's own text follows."""
    allocator = ExchangeAllocator(Tensor)
    with pytest.raises(AllocationError, match=f"'dlbridge' cannot give {2**58} bytes"):
        empty(2**56, "float32", allocator=allocator)


def test_an_exchange_allocator_needs_a_table():
    for source in (np.ndarray, 3):
        with pytest.raises(UnsupportedTypeError, match="__dlpack_c_exchange_api__"):
            ExchangeAllocator(source)


def test_our_own_table_allocates_as_well():
    allocator = ExchangeAllocator(Tensor)
    assert allocator.name == "dlbridge"
    assert full(3, 1, "int16", allocator=allocator).tolist() == [1, 1, 1]


# ---- memory of others ----


def test_a_buffer_keeps_its_format_shape_strides_and_mark():
    memory_of_it = np.arange(24, dtype="i2").reshape(4, 6)[::-2, ::3]
    tensor = from_buffer(memory_of_it)
    assert tensor.tolist() == memory_of_it.tolist()
    assert tensor.strides == (-12, 3)
    assert not tensor.readonly
    assert from_buffer(b"ab").readonly
    assert from_buffer(array.array("d", [1, 2])).tolist() == [1.0, 2.0]
    assert from_buffer((ctypes.c_int32 * 3)(1, 2, 3)).tolist() == [1, 2, 3]


@given(st.integers(0, 9), st.sampled_from(["uint8", "int16", "float32", "uint4", "float6_e2m3fn"]))
def test_bytes_are_read_as_any_dtype_from_any_offset(offset, name):
    data = bytes(range(24))
    rest = len(data) - offset
    dtype = empty(0, name).dtype
    count = rest * 8 // dtype.itembits
    if rest * 8 % dtype.itembits:
        with pytest.raises(ArgumentError, match="do not divide"):
            from_buffer(data, name, offset=offset)
        tensor = from_buffer(data, name, count, offset)
    else:
        tensor = from_buffer(data, name, offset=offset)
    assert tensor.shape == (count,)
    if count:
        start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        assert tensor.data_ptr == start + offset
    if name in ("uint8", "int16", "float32"):
        assert bytes(np.asarray(tensor)) == data[offset : offset + tensor.nbytes]


def test_writing_through_reaches_the_buffer():
    data = bytearray(8)
    tensor = from_buffer(data, "float32", (2,))
    tensor[1] = 1.0
    assert data == b"\0\0\0\0\0\0\x80\x3f"
    with pytest.raises(BufferError):  # locked, as memoryview locks it
        data.append(1)
    del tensor
    data.append(1)


def test_a_mapped_file_is_a_tensor():
    with mmap.mmap(-1, 4096) as mapped:
        tensor = from_buffer(mapped, "int32", (-1, 16))
        tensor[1, 0] = 5
        assert mapped[64] == 5
        assert tensor.shape == (64, 16)
        del tensor


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"dtype": "int16"}, "do not divide"),
        ({"dtype": "int8", "shape": (2, 4)}, "needs 8 bytes, the buffer has 7"),
        ({"dtype": "int8", "shape": (2, -1)}, "do not divide"),
        ({"dtype": "int8", "shape": (0, -1)}, "do not divide"),
        ({"dtype": "int8", "shape": (-1, -1)}, "negative"),
        ({"dtype": "int8", "shape": (-2,)}, "negative"),
        ({"dtype": "int8", "offset": 8}, "offset 8"),
        ({"dtype": "int8", "offset": -1}, "offset -1"),
        ({"offset": 9}, "offset 9"),
        ({"shape": 8}, "needs 8"),
        ({"shape": 2**70}, "overflows"),
    ],
)
def test_dimensions_beyond_the_buffer_are_refused(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        from_buffer(bytes(7), **arguments)


def test_scattered_memory_is_not_read_again():
    for strided in (np.zeros((4, 4))[:, ::2], np.zeros((4, 4)).T[:, :3]):
        with pytest.raises(ExchangeError) as caught:
            from_buffer(strided, "int8")
        assert caught.value.reason == "strides"


def test_objects_without_a_buffer_or_a_dtype_are_refused():
    with pytest.raises(TypeError):
        from_buffer(3)
    with pytest.raises(ExchangeError) as caught:
        from_buffer(np.zeros(3, "S3"))
    assert caught.value.reason == "dtype"
    with pytest.raises(ExchangeError):
        from_buffer(np.zeros(3, ">i4"))


def test_buffers_that_are_gone_are_refused():
    """A released view and a closed mapping have no memory to give."""
    view = memoryview(b"abcd")
    view.release()
    mapped = mmap.mmap(-1, 4096)
    mapped.close()
    for dtype in (None, "int8"):
        for buffer in (view, mapped):
            with pytest.raises(ArgumentError, match="from_buffer"):
                from_buffer(buffer, dtype)
        with pytest.raises(UnsupportedTypeError, match="from_buffer"):
            from_buffer(3, dtype)


@pytest.mark.parametrize("offset", [2.0, "2", None])
def test_an_offset_is_an_integer(offset):
    """Of bytes; a number with a fraction has no place."""
    with pytest.raises(ArgumentError, match="offset must be an integer"):
        from_buffer(bytes(8), "int8", offset=offset)


def test_empty_buffers():
    assert from_buffer(b"").shape == (0,)
    assert from_buffer(b"", "float32").shape == (0,)
    assert from_buffer(np.zeros((3, 0)), "int8").shape == (0,)
    assert from_buffer(b"ab", "int16", offset=2).shape == (0,)
    assert from_buffer(b"", "int8", (0, 5)).shape == (0, 5)


def test_nothing_stays_counted():
    before = native.live()
    tensor = from_buffer(bytearray(8), "int16")
    assert native.live()["tensors"] == before["tensors"] + 1
    del tensor
    assert native.live() == before


# ---- freed memory, kept for reuse ----

MIB = 2**20


def kept():
    return CPUAllocator().cached_bytes


@pytest.mark.parametrize("nbytes", [1, 65, 4096, MIB, 5 * MIB])
def test_freed_memory_is_used_again(nbytes):
    dlbridge.trim()
    first = empty(nbytes, "uint8")
    address = first.data_ptr
    assert kept() == 0
    del first
    assert kept() >= nbytes
    again = empty(nbytes, "uint8")
    assert again.data_ptr == address
    assert kept() == 0


def test_memory_that_is_kept_is_no_leak():
    dlbridge.trim()
    before, in_use = native.live(), CPUAllocator().statistics().bytes_in_use
    empty(MIB, "uint8")
    assert native.live() == before
    assert CPUAllocator().statistics().bytes_in_use == in_use
    assert kept() == dlbridge.trim() == MIB
    assert kept() == dlbridge.trim() == 0


def test_kept_memory_has_a_bound():
    dlbridge.trim()
    blocks = [
        empty(size * MIB, "uint8") for size in (8, 10, 12, 16, 20, 100, 200) for _ in range(9)
    ]
    del blocks
    assert 128 * MIB < kept() <= 256 * MIB
    dlbridge.trim()


def test_the_largest_blocks_make_room():
    dlbridge.trim()
    large = [empty(128 * MIB, "uint8") for _ in range(2)]
    del large
    assert kept() == 256 * MIB
    empty(MIB, "uint8")
    assert kept() == 129 * MIB
    dlbridge.trim()


@pytest.mark.parametrize("nbytes", [1, 64, 1000, 100_000, 300_000, 4 * MIB])
def test_zeros_are_zero_in_used_memory(nbytes):
    dirty = [full(nbytes, 255, "uint8") for _ in range(3)]
    del dirty
    assert not np.from_dlpack(zeros(nbytes, "uint8")).any()


@given(st.lists(st.integers(0, 3 * MIB), max_size=30), st.randoms())
def test_blocks_do_not_overlap(sizes, order):
    tensors = [full(size, i, "uint8") for i, size in enumerate(sizes)]
    for _ in range(2):
        order.shuffle(tensors)
        del tensors[len(tensors) // 2 :]
        tensors += [full(size, 200 + i, "uint8") for i, size in enumerate(sizes)]
    for tensor in tensors:
        assert tensor.data_ptr % 64 == 0
        values = np.from_dlpack(tensor)
        assert not values.size or values.min() == values.max()


def test_threads_never_get_one_block_twice():
    def work(mark):
        held = []
        for step in range(400):
            nbytes = (64, 100, 5000, 300_000)[step % 4]
            held.append(full(nbytes, mark, "uint8"))
            if len(held) > 6 and not (np.from_dlpack(held.pop(step % 5)) == mark).all():
                failed.append(mark)
            if step % 100 == 99:
                dlbridge.trim()

    failed: list[int] = []
    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_child_after_fork_has_the_kept_memory(run_python):
    run_python(
        """
        import os, dlbridge
        dlbridge.empty(2**20, "uint8")
        child = os.fork()
        assert dlbridge.CPUAllocator().cached_bytes == 2**20
        assert not any(bytes(dlbridge.zeros(2**20, "uint8")))
        assert dlbridge.trim() >= 2**20
        assert dlbridge.CPUAllocator().cached_bytes == 0
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """
    ).check()


def test_large_memory_asks_for_huge_pages():
    tensor = empty(8 * MIB, "uint8")
    assert tensor.data_ptr % (2 * MIB) == 0
    with open("/proc/self/smaps") as file:
        flags = ""
        for line in file:
            head = line.split(maxsplit=1)[0]
            if "-" in head:
                low, high = (int(part, 16) for part in head.split("-"))
                is_here = low <= tensor.data_ptr < high
            elif line.startswith("VmFlags") and is_here:
                flags = line
    assert " hg" in flags


def test_kept_memory_is_freed_when_memory_runs_out(run_python):
    run_python(
        """
        import dlbridge
        from measuring import allow_memory
        first = dlbridge.empty(100 << 20, "uint8")
        del first
        allow_memory(100 << 20)
        second = dlbridge.empty(170 << 20, "uint8")
        assert dlbridge.CPUAllocator().cached_bytes == 0
        """
    ).check()


def test_plain_arguments_of_empty_mean_what_python_reads():
    """The path in C finds a dtype by its address, after the first call."""
    for dtype in ("float32", DType("int4"), np.int16, float, dlbridge.bfloat16, "float32x4"):
        for shape in (3, (2, 3), (), (0, 5), 0):
            slow, fast = empty(shape, dtype, alignment=64), empty(shape, dtype)
            assert (fast.shape, fast.dtype, fast.strides) == (slow.shape, slow.dtype, slow.strides)
            assert type(fast) is Tensor
            assert fast.data_ptr % 64 == 0
    for shape in (-1, (2, -1), 2**62, (2**40, 2**40), "3", 1.5, (1.5,), None, True, [2, 2]):
        results = []
        for arguments in ({}, {"alignment": 64}):
            try:
                results.append(empty(shape, "float32", **arguments).shape)
            except Exception as error:
                results.append((type(error), str(error)))
        assert results[0] == results[1]


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-300, 300),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, 0)]),
    st.sampled_from([-(2**k) - d for k in (7, 15, 31, 63) for d in (0, 1)]),
    st.floats(),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1e39, 1e-39, 1e-46, 1 + 2j, np.float32(1.5), np.int8(3)]),
)
KINDS_OF_NUMBERS = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "int4", "float32x4", None),
]


def filled(make, *args, **policies):
    """All that a caller can see of new memory, or of why there is none."""
    try:
        with np.errstate(over="ignore", under="ignore"):
            made = make(*args, **policies)
    except Exception as error:
        return type(error), str(error)
    facts = (type(made), made.shape, made.strides, made.dtype, made.flags, made.data_ptr % 64)
    return facts, ctypes.string_at(made.data_ptr, made.nbytes)


@given(NUMBERS, st.sampled_from(KINDS_OF_NUMBERS), st.sampled_from([3, (2, 3), (), (0, 2), (9,)]))
def test_new_memory_is_filled_in_c_as_in_python(number, dtype, shape):
    """Arguments that name the alignment go by Python."""
    for _ in range(2):  # a dtype is found by its address from the second call on
        fast = filled(full, shape, number, dtype)
        assert fast == filled(full, shape, number, dtype, alignment=64)
        assert fast == filled(full, shape, number, dtype=dtype, device="cpu")
        for make in (zeros, ones):
            assert filled(make, shape, dtype) == filled(make, shape, dtype, alignment=64)


def test_large_new_memory_is_filled_to_its_end():
    for dtype in ("uint8", "int16", "float32", "float64"):
        made = np.asarray(full(300_001, 7, dtype))
        assert (made == 7).all()
        assert (np.asarray(ones(300_001, dtype)) == 1).all()


def test_the_type_of_a_value_without_a_dtype_is_not_taken_for_one():
    full(3, np.ones(3, "float32"))
    full(3, 1.5)
    for wrong in (np.ndarray, type(None)):
        with pytest.raises(dlbridge.DLBridgeError):
            empty(3, wrong)


def test_a_wrong_call_for_new_memory_names_the_function():
    for make in (empty, zeros, ones):
        with pytest.raises(TypeError, match=rf"^{make.__name__}\(\)"):
            make()
    with pytest.raises(TypeError, match=r"^full\(\)"):
        full((2, 3))


def make_kernel():
    return dlbridge.wrap(lambda x: x, abi="python:numpy")  # no name: the registry keeps those


def make_session():
    import dlbridge.graph as tf

    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None])
        y = (x + 1.0) * 2.0
    session = tf.Session(graph=graph)
    session.run(y, {x: np.ones(3, np.float32)})
    return session


# Object -> the kinds of allocation of the core that it adds.
MADE = {
    "a tensor of an object": (lambda: from_buffer(bytearray(8)), "tensors references"),
    "a tensor of the allocator": (lambda: native.allocate((8,), (2, 32, 1)), "tensors buffers"),
    "a capsule": (lambda: from_buffer(bytearray(8)).__dlpack__(), "exports references"),
    "a view": (lambda: memoryview(from_buffer(bytearray(8))), "views tensors references"),
    "a kernel": (make_kernel, "kernels"),
    "a session that ran": (make_session, "programs"),
}


@pytest.mark.parametrize("what", MADE)
def test_each_kind_of_allocation_is_counted_and_freed(what):
    make, kinds = MADE[what]
    if what == "a session that ran":
        pytest.importorskip("array_api_compat")
    make()  # what it caches once stays
    gc.collect()
    before = native.live()
    made = make()
    during = native.live()
    for kind in kinds.split():
        assert during[kind] > before[kind], kind
    del made
    gc.collect()
    assert native.live() == before


def test_memory_for_the_time_of_a_call_is_counted():
    assert native.live()["scratch"] == native.live()["loans"] == 0
