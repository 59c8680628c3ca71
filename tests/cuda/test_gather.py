"""Strided copies by dlbridge's own kernels: what they compute, and how they are launched."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import re
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from fake_driver import CORE, OWN_KERNELS

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import DLBridgeError

HERE = Path(__file__).resolve().parent
PTX = CORE / "cuda/gather.ptx"
ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 103, 120)
ITEMSIZES = (1, 2, 4, 8, 16)
INVALID_IMAGE, NO_BINARY_FOR_GPU, LAUNCH_OUT_OF_RESOURCES = 200, 209, 701

# ---- the kernels on the host ---------------------------------------------------------------------


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("ndim", ctypes.c_int32),
        ("itemsize", ctypes.c_int32),
        ("to", ctypes.c_void_p),
        ("from_", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("to_strides", ctypes.c_void_p),
        ("from_strides", ctypes.c_void_p),
    )


class _Summary(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("launches", "transposed", "bytes", "sizes")),
        *((name, ctypes.c_int64) for name in ("wanted", "got")),
        ("seed", ctypes.c_uint64),
        ("to", ctypes.c_void_p),
        ("from_", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("of", ctypes.c_void_p),
    )


class Found(NamedTuple):
    """What the launches of a copy were, and (to, from) of sampled elements in bytes."""

    launches: int
    transposed: int
    nbytes: int
    sizes: int
    to: np.ndarray
    origin: np.ndarray


class Host:
    """The kernels, compiled for the host, behind the plan that the core makes."""

    def __init__(self, path: Path) -> None:
        self._gather = ctypes.CDLL(str(path)).gather

    def __call__(self, to, origin, shape, strides, itemsize, *, runs=True, samples=0) -> Found:
        """Copy from and to addresses; strides are pairs of (to, from), in elements."""
        arrays = [np.array(each, np.int64) for each in (shape, *zip(*strides, strict=True))]
        found = np.zeros((2, 4096), np.int64)
        summary = _Summary(wanted=samples, seed=len(shape) + itemsize, room=4096)
        summary.to, summary.from_ = found[0].ctypes.data, found[1].ctypes.data
        given = _Tensors(len(shape), itemsize, to, origin, *(each.ctypes.data for each in arrays))
        assert self._gather(ctypes.byref(given), int(runs), ctypes.byref(summary)) == 0
        counts = (summary.launches, summary.transposed, summary.bytes, summary.sizes)
        return Found(*counts, *found[:, : summary.got])


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Host:
    library = tmp_path_factory.mktemp("gather") / "gather.so"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    files = [HERE / "gather_on_host.c"]
    files += [CORE / name for name in ("cuda/gather.c", "memory/copy.c", "layout/layout.c")]
    command = [*compiler, "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden",
               "-Wno-unused-function", f"-I{CORE}", f"-I{CORE.parents[1] / 'include'}",
               f"-I{HERE}", "-o", library, *files]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    return Host(library)


def aligned(count: int, itemsize: int) -> np.ndarray:
    """Return elements of random bytes, at an address that is a multiple of 16."""
    raw = np.random.default_rng(count).integers(0, 256, count * itemsize + 16, np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + count * itemsize].view(f"V{itemsize}")


def random_view(rng, base_of, shape, itemsize, *, repeats):
    """Return a base and a view of it: any order of dimensions, steps, directions, gaps."""
    order = rng.permutation(len(shape))
    is_dense = rng.random() < 0.5
    steps = rng.choice([1, 1, -1] if is_dense else [1, 2, 3, -1, -2], len(shape))
    once = [repeats and not is_dense and rng.random() < 0.2 for _ in shape]
    margin = rng.integers(0, 2, (len(shape), 2))
    extents = [
        int(before + (1 if single else n * abs(step)) + after)
        for n, step, single, (before, after) in zip(shape, steps, once, margin, strict=True)
    ]
    base = base_of(math.prod(extents[i] for i in order), itemsize)
    view = base.reshape([extents[i] for i in order]).transpose(np.argsort(order))
    for axis, n in enumerate(shape):
        first, step = int(margin[axis][0]), int(steps[axis])
        stop = first + (1 if once[axis] else n * abs(step))
        part = slice(first, stop) if once[axis] else slice(first, stop, abs(step))
        view = view[(slice(None),) * axis + (part,)]
        if step < 0 and not once[axis]:
            view = np.flip(view, axis)
    return base, np.broadcast_to(view, shape) if repeats else view


def copy(host: Host, to: np.ndarray, origin: np.ndarray, **options) -> Found:
    """Copy between views of NumPy."""
    strides = [
        (a // to.itemsize, b // to.itemsize)
        for a, b in zip(to.strides, origin.strides, strict=True)
    ]
    addresses = [each.__array_interface__["data"][0] for each in (to, origin)]
    return host(*addresses, to.shape, strides, to.itemsize, **options)


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_random_layouts_are_copied_as_numpy_copies_them(host, itemsize):
    """Each byte around the views as well; sizes on both sides of a tile and of a block."""
    rng = np.random.default_rng(itemsize)
    total = transposed = 0
    while total < 300_000:
        ndim = int(rng.integers(1, 6))
        shape = tuple(int(rng.choice([1, 2, 3, 5, 16, 31, 32, 33, 70])) for _ in range(ndim))
        if math.prod(shape) > 60_000:
            continue
        _, source = random_view(rng, aligned, shape, itemsize, repeats=True)
        base, target = random_view(rng, aligned, shape, itemsize, repeats=False)
        before = base.copy()
        found = copy(host, target, source)
        result = base.copy()
        base[:] = before
        target[...] = source
        assert result.tobytes() == base.tobytes(), (shape, target.strides, source.strides)
        assert found.nbytes == target.nbytes
        total += target.size
        transposed += found.transposed
    assert transposed > 0


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("shape", [(16, 16), (32, 32), (33, 100), (3, 40, 65), (2, 3, 70, 50)])
def test_arrays_compact_along_other_dimensions_are_copied_in_tiles(host, shape, itemsize):
    """So that reads and writes both come in rows, whichever way the source is walked."""
    source = aligned(math.prod(shape), itemsize).reshape(shape)
    for turned in (np.moveaxis(source, -1, -2), np.moveaxis(source[..., ::-1], -1, -2)):
        target = aligned(turned.size, itemsize).reshape(turned.shape)
        found = copy(host, target, turned)
        assert target.tobytes() == turned.tobytes()
        assert (found.launches, found.transposed) == (1, 1)


@pytest.mark.parametrize(
    ("shape", "sizes"), [((9, 1), 1), ((9, 2), 2), ((9, 12), 4), ((9, 8), 8), ((9, 48), 16)]
)
def test_the_largest_element_that_fits_is_moved(host, shape, sizes):
    """Rows of 12 bytes are three elements of four: a thread moves as much as alignment lets it."""
    source = aligned(shape[0] * shape[1] * 2, 1).reshape(shape[0], 2 * shape[1])[:, : shape[1]]
    target = aligned(math.prod(shape), 1).reshape(shape)
    found = copy(host, target, source)
    assert target.tobytes() == source.tobytes()
    assert found.sizes == sizes


def test_memory_that_is_not_aligned_goes_in_smaller_elements(host):
    base = aligned(1001, 1)
    source = base[1:].view("V8")[::2]  # NumPy's views may begin anywhere
    target = aligned(len(source), 8)
    found = copy(host, target, source)
    assert target.tobytes() == source.tobytes()
    assert found.sizes == 1


def test_more_loops_than_a_launch_has_are_several_launches(host):
    shape = (2,) * 11
    source = aligned(3**11, 2).reshape((3,) * 11)[(slice(0, 2),) * 11]
    target = aligned(2**11, 2).reshape(shape)
    found = copy(host, target, source)
    assert target.tobytes() == source.tobytes()
    assert found.launches == 2 ** (11 - 8)


@pytest.mark.parametrize(
    ("shape", "order", "itemsize"),
    [
        ((3, 1 << 20, 5, 2047), (1, 0, 3, 2), 1),
        (((1 << 31) + 3, 3), (1, 0), 2),
        ((70_001, 70_001), (1, 0), 16),
        ((7, (1 << 29) - 1, 3), (2, 1, 0), 4),
        ((2, 1 << 32), (0, 1), 1),
        ((1291, 1291, 1291), (2, 0, 1), 8),
    ],
)
def test_more_than_two_to_the_31_elements_are_found_by_their_index(host, shape, order, itemsize):
    """By arithmetic alone: no memory is touched. Each sample is where NumPy's strides say."""
    to_strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    compact, origin_strides = 2, [0] * len(shape)  # every second element
    for axis in reversed(order):
        origin_strides[axis] = compact
        compact *= shape[axis]
    assert math.prod(shape) > 1 << 31
    strides = list(zip(to_strides, origin_strides, strict=True))
    found = host(1 << 40, 1 << 50, shape, strides, itemsize, runs=False, samples=40)
    assert found.nbytes == math.prod(shape) * itemsize
    assert found.launches >= found.nbytes >> 30
    assert len(set(found.to.tolist())) > found.launches
    number, rest = np.divmod(found.to, itemsize)
    assert not rest.any()
    index = np.unravel_index(number, shape)
    expected = sum(np.asarray(i, np.int64) * s for i, s in zip(index, origin_strides, strict=True))
    assert np.array_equal(found.origin, expected * itemsize)


@pytest.mark.parametrize("extent", [2, 3, 7, 641, 65_535, 65_537, (1 << 24) - 1, (1 << 29) - 1])
def test_division_by_magic_numbers_is_exact(host, extent):
    """At the last element above all, where the rounded number is furthest from its place."""
    outer = max((1 << 30) // extent // 2, 2)
    strides = [(extent, 5 * extent), (1, 5)]
    found = host(1 << 40, 1 << 50, (outer, extent), [(strides[0][0] + 1, strides[0][1]),
                 strides[1]], 1, runs=False, samples=2000)  # fmt: skip
    row, column = np.divmod(found.to, extent + 1)
    assert column.max() < extent
    assert np.array_equal(found.origin, row * 5 * extent + column * 5)


# ---- the text for the driver ---------------------------------------------------------------------


def find_tool(name: str) -> str | None:
    """Return a tool of the CUDA toolkit: of PyPI's package, of the path, of the usual folder."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    folders = [packages / "cuda_nvcc/bin", packages / "cu13/bin", Path("/usr/local/cuda/bin")]
    for folder in folders:
        found = folder / name
        if found.exists():
            return str(found)
    return shutil.which(name)


def test_the_ptx_was_made_of_this_source():
    """Its first line is the sum of what it was made of: `make ptx` after a change."""
    summed = hashlib.sha256(b"".join(path.read_bytes() for path in OWN_KERNELS)).hexdigest()
    assert PTX.read_text().partition("\n")[0] == f"// {summed}"


def test_the_ptx_has_a_kernel_for_each_size_of_element():
    names = re.findall(r"\.entry (\w+)\(", PTX.read_text())
    kinds = ("gather", "transpose")
    assert names == [f"dlb_{kind}_{size}" for kind in kinds for size in ITEMSIZES]


@pytest.mark.fast(lambda architecture: architecture == ARCHITECTURES[0])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_ptx_is_assembled_without_spills(architecture):
    tool = find_tool("ptxas")
    if tool is None:
        pytest.skip("needs ptxas of the CUDA toolkit, or of nvidia-cuda-nvcc-cu12")
    command = [tool, f"-arch=sm_{architecture}", "-v", "-o", os.devnull, str(PTX)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr)
    assert spills == [("0", "0")] * 2 * len(ITEMSIZES), done.stderr
    registers = [int(text) for text in re.findall(r"Used (\d+) registers", done.stderr)]
    assert max(registers) <= 48  # five blocks of 256 threads on a multiprocessor


def find_ptx_of_the_tests() -> dict[str, str]:
    """Return by name the PTX that the tests give to the driver."""
    paths = [*HERE.glob("*.ptx"), *HERE.parent.glob("gpu/*.ptx")]
    found = {path.name: path.read_text() for path in sorted(paths)}
    source = (HERE / "test_torch_on_gpu.py").read_text()
    (found["add_one of torch"],) = re.findall(r'b"""(\n\.version .*?)"""', source, re.DOTALL)
    return found


@pytest.mark.parametrize("name", PTX_OF_THE_TESTS := find_ptx_of_the_tests())
def test_the_kernels_of_the_tests_are_for_every_driver_that_dlbridge_takes(name, tmp_path):
    """Text of a newer compiler than the driver's is refused when it is loaded."""
    tool = find_tool("ptxas")
    if tool is None:
        pytest.skip("needs ptxas of the CUDA toolkit, or of nvidia-cuda-nvcc-cu12")
    text = PTX_OF_THE_TESTS[name]
    version = re.search(r"^\.version (\d+)\.(\d+)", text, re.MULTILINE)
    assert tuple(map(int, version.groups())) <= (7, 3)  # of CUDA 11.3
    (tmp_path / "it.ptx").write_text(text)
    for architecture in ARCHITECTURES:
        command = [tool, f"-arch=sm_{architecture}", "-o", os.devnull, str(tmp_path / "it.ptx")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# ---- launches, on the fake driver ----------------------------------------------------------------


def strided(device="cuda", count=64):
    """Return a host tensor, a strided view of its copy on the device, and the same of the host."""
    array = np.arange(2.0 * count).reshape(count, 2)
    there = dlbridge.from_dlpack(array).to(device)
    return there[:, 0], array[:, 0]


def names(machine) -> list[str]:
    found = machine.actions()
    return [name for name in found if name.startswith(("cuMemcpy", "cuLaunch", "cuModuleLoad"))]


def test_the_kernels_are_loaded_with_the_first_strided_copy_of_a_device(fake_machine):
    there, array = strided()
    fake_machine.reset()
    copied = [there.copy() for _ in range(3)]
    assert names(fake_machine) == ["cuModuleLoadData", *["cuLaunchKernel"] * 3]
    assert all(each.to("cpu").tolist() == array.tolist() for each in copied)
    other, _ = strided("cuda:1")
    fake_machine.reset()
    assert other.copy().to("cpu").tolist() == array.tolist()
    assert "cuModuleLoadData" in names(fake_machine)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[::-1],
        lambda t: t[:, ::2],
        lambda t: t.transpose(1, 0)[::-1],
        lambda t: t.reshape(4, 4, 2, 2)[:, :3, 0, ::-1],
        lambda t: t._view((16, 5, 4), (4, 0, 1)),
        lambda t: t._view((100, 4), (0, 1)),
        lambda t: t._view((50,), (0,)),
    ],
    ids=["reversed", "columns", "turned", "boxes", "repeated", "one row", "one element"],
)
def test_a_strided_copy_is_one_launch(fake_machine, view):
    host = dlbridge.from_dlpack(np.arange(64.0).reshape(16, 4))
    there = host.to("cuda")
    fake_machine.reset()
    copied = view(there).copy("C")
    assert [name for name in names(fake_machine) if name != "cuModuleLoadData"] == [
        "cuLaunchKernel"
    ]
    assert copied.to("cpu").tolist() == view(host).tolist()


def test_long_rows_are_left_to_the_copy_engine(fake_machine):
    there = dlbridge.zeros((64, 16), "float64", device="cuda")
    fake_machine.reset()
    there[:, :8].copy()
    assert names(fake_machine) == ["cuMemcpy2DAsync"]


def test_long_rows_that_would_be_many_copies_are_one_launch(fake_machine):
    host = dlbridge.from_dlpack(np.arange(1600.0).reshape(100, 16))
    there = host.to("cuda")
    fake_machine.reset()
    copied = there[::-1].copy()
    assert names(fake_machine) == ["cuModuleLoadData", "cuLaunchKernel"]
    assert copied.to("cpu").tolist() == host[::-1].tolist()


@pytest.mark.parametrize("mode", ["global", "thread-local", "relaxed"])
def test_a_first_strided_copy_in_a_capture_becomes_part_of_the_graph(machine, mode):
    """Loading a module would end a capture, unless the calling thread relaxes its mode."""
    there, array = strided()
    copied = dlbridge.zeros((64,), "float64", device="cuda")
    stream = machine.stream()
    with cuda.stream(stream):
        for tensor in (there, copied):
            native.cuda_begin(tensor, stream, True)
        with machine.capture(stream, ("global", "thread-local", "relaxed").index(mode)) as graph:
            native.copy_into(copied, there)
        graph.launch(stream)
        graph.launch(stream)
        assert copied.to("cpu").tolist() == array.tolist()
    machine.synchronise()


def test_a_strided_copy_comes_after_slow_work_of_another_stream(machine):
    tensor = dlbridge.zeros((512,), "uint8", device="cuda")
    slow, other = machine.stream(), machine.stream()
    native.cuda_begin(tensor, slow, True)
    machine.launch(slow, writes=[(tensor.data_ptr, 512)], value=9, slow=True)
    machine.reset()
    with cuda.stream(other):
        copied = tensor[::2].copy()
        native.cuda_begin(tensor, slow, True)
        machine.launch(slow, writes=[(tensor.data_ptr, 512)], value=1)
        assert machine.host_synchronisations == 0
        assert set(bytes(copied.to("cpu"))) == {9}
        del copied
    del tensor


@pytest.mark.parametrize("function", ["cuModuleLoadData", "cuModuleGetFunction"])
def test_where_the_kernels_cannot_be_loaded_the_copy_engine_copies(fake_machine, function):
    """A device or a driver that is too old for them is asked once."""
    there, array = strided()
    fake_machine.reset()
    fake_machine.fail(function, NO_BINARY_FOR_GPU)
    copied = [there.copy(), there._view((3, 64), (0, 2)).copy(), there.copy()]
    called = names(fake_machine)
    assert called.count("cuModuleLoadData") == 1
    assert "cuMemcpy2DAsync" in called
    assert "cuLaunchKernel" not in called
    assert copied[0].to("cpu").tolist() == copied[2].to("cpu").tolist() == array.tolist()
    assert copied[1].to("cpu").tolist() == [array.tolist()] * 3


@pytest.mark.parametrize(
    ("rows", "function"),
    [
        (lambda t: t[:, :64], "cuMemcpy2DAsync"),
        (lambda t: t[::2], "cuMemcpy2DAsync"),
        (lambda t: t.reshape(4, 4, 2, 64)[:, :3, 0], "cuMemcpy3DAsync"),
    ],
)
@pytest.mark.parametrize("has_kernels", [True, False])
def test_pitches_that_the_copy_engine_refuses_are_left_to_the_kernels(
    fake_machine, rows, function, has_kernels
):
    """By CUDA's words it may, within a device, unless cuMemAllocPitch has computed them."""
    array = np.arange(16 * 128, dtype=np.uint8).reshape(16, 128)
    there = dlbridge.from_dlpack(array).to("cuda")
    if not has_kernels:
        fake_machine.fail("cuModuleLoadData", NO_BINARY_FOR_GPU)
        there[:, ::2].copy()
    fake_machine.reset()
    fake_machine.fail(function, 1)
    copied = rows(there).copy("C")
    assert copied.to("cpu").tolist() == rows(array).tolist()
    called = [name for name in names(fake_machine) if not name.startswith("cuModule")]
    assert called[0] == function
    assert called[1] == ("cuLaunchKernel" if has_kernels else "cuMemcpyAsync")


def test_where_memory_was_short_the_kernels_are_loaded_later(fake_machine):
    there, array = strided()
    fake_machine.reset()
    fake_machine.fail("cuModuleLoadData", 2)
    assert there.copy().to("cpu").tolist() == array.tolist()
    assert there.copy().to("cpu").tolist() == array.tolist()
    assert names(fake_machine).count("cuModuleLoadData") == 2
    assert "cuLaunchKernel" in names(fake_machine)


def test_a_launch_that_fails_is_an_error(fake_machine):
    there, array = strided()
    fake_machine.fail("cuLaunchKernel", LAUNCH_OUT_OF_RESOURCES)
    with pytest.raises(DLBridgeError, match="cuLaunchKernel"):
        there.copy()
    assert there.copy().to("cpu").tolist() == array.tolist()


def test_threads_that_copy_first_load_the_kernels_once(fake_machine):
    there, array = strided()
    fake_machine.reset()
    with ThreadPoolExecutor(8) as pool:
        copied = list(pool.map(lambda _: there.copy(), range(16)))
    assert names(fake_machine).count("cuModuleLoadData") == 1
    assert all(each.to("cpu").tolist() == array.tolist() for each in copied)


def test_strided_memory_crosses_to_the_host_and_to_another_device(machine):
    """Packed by the kernel into what the copy engine then takes."""
    machine.need_devices(2)
    array = np.arange(6000.0).reshape(60, 100)
    there = dlbridge.from_dlpack(array).to("cuda:0")
    for place in ("cpu", "cuda_host", "cuda:1"):
        assert there[:, ::3].to(place, copy=True).to("cpu").tolist() == array[:, ::3].tolist()
    back = dlbridge.zeros((60, 100), "float64", device="cuda:1")
    native.copy_into(back.transpose(1, 0), there.reshape(100, 60))
    assert back.to("cpu").tolist() == array.reshape(100, 60).T.tolist()


@pytest.mark.parametrize("layout", ["every third", "repeated"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("cuda_managed:0", "cuda:1"),
        ("cuda:1", "cuda_managed:0"),
        ("cuda_managed:0", "cuda_managed:1"),
        ("cuda_host", "cuda:1"),
        ("cuda:1", "cuda_host"),
    ],
)
def test_the_kernel_runs_on_a_device_that_reaches_both_sides(machine, source, target, layout):
    """The copy engines reach all memory of a process; a kernel reaches its own device's."""
    machine.need_devices(2)
    array = np.arange(300.0)
    there = dlbridge.from_dlpack(array).to(source)
    view, expected = (
        (there[::3], array[::3])
        if layout == "every third"
        else (there._view((100,), (0,)), np.zeros(100))
    )
    result = dlbridge.zeros((100,), "float64", device=target)
    native.copy_into(result, view)
    assert result.to("cpu").tolist() == expected.tolist()
