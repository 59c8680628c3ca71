"""Memory that producers lend: what they do to it afterwards must not reach the view.

A producer may free, move or reuse its memory by calls of its own, while the object lives. Each row
of the table in docs/concepts/ownership.md has a test here: the view holds the memory, or the
producer refuses the call, or the limit is as documented. What would end the process runs in one of
its own.
"""

from __future__ import annotations

import ctypes
import io
import mmap
from array import array
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge

# A kernel that lets a producer change its memory, and reads it then.
CALLBACK = """
    import ctypes

    read, others = [], []
    SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def reading(change, nbytes):
        def call(_context, tensors):
            data = ctypes.c_void_p.from_address(tensors).value
            change()
            read.append(list(ctypes.string_at(data, nbytes)))
            return 0

        return SIGNATURE(call)
"""

# The same, which reads shape and values of one of the tensors.
LOOKING = """
    import ctypes

    others = []
    SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)

    class DLTensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_int32),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        ]

    def looking(change, which, seen):
        def call(_context, tensors, _count):
            tensor = ctypes.cast(tensors, ctypes.POINTER(DLTensor))[int(which)]
            change()
            values = np.frombuffer(ctypes.string_at(tensor.data, 4000), "float32")
            seen.append((tuple(tensor.shape[: tensor.ndim]), set(values.tolist())))
            return 0

        return SIGNATURE(call)
"""

# ---- JAX -----------------------------------------------------------------------------------------

JAX = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    import dlbridge

    def fresh(dtype):
        return (jnp.arange(1000) % 7).astype(dtype)

    def recorded(x):
        with dlbridge.receipts():
            return dlbridge.from_dlpack(x)

    def delete(x):
        x.delete()

    def delete_shards(x):
        x.addressable_shards[0].data.delete()
        x.delete()

    def donate(x):
        jax.jit(lambda v: v * 7, donate_argnums=0)(x)

    LENDS = {
        "to_numpy": dlbridge.to_numpy,
        "from_dlpack": dlbridge.from_dlpack,
        "as_tensor": dlbridge.as_tensor,
        "recorded": recorded,
        "view": lambda x: dlbridge.from_dlpack(x)[:],
        "convert_tree": lambda x: dlbridge.convert_tree([x], "numpy")[0],
        "capsule": lambda x: dlbridge.from_dlpack(x).__dlpack__(max_version=(1, 1)),
        "exported again": lambda x: dlbridge.to_jax(dlbridge.to_numpy(dlbridge.from_dlpack(x))),
    }
"""


@pytest.mark.fast(lambda dtype: dtype in ("float32", "bfloat16"))
@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "float8_e4m3fn"])
def test_a_view_survives_the_deletion_of_a_jax_array(
    dtype: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """jaxlib's own capsules end the process here: its buffer protocol keeps the buffer."""
    framework("jax")
    run_python(
        JAX
        + """
    def delete_everything(x):
        for each in jax.live_arrays():
            each.delete()

    dtype = sys.argv[1]
    for name, lend in LENDS.items():
        for change in delete, delete_shards, donate, delete_everything:
            x = fresh(dtype)
            expected = np.array(x)
            lent = lend(x)
            change(x)
            del x
            others = [jnp.full(1000, 9.0).block_until_ready() for _ in range(20)]
            if name == "capsule":
                lent = dlbridge.from_dlpack(lent)
            if not isinstance(lent, jax.Array) or not lent.is_deleted():
                assert np.array_equal(dlbridge.to_numpy(lent), expected), (name, change)
            del lent
        """,
        dtype,
    ).check()


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
def test_a_result_of_a_jitted_kernel_may_be_deleted(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    framework("jax")
    run_python(
        JAX
        + """
    def double(x, out):
        np.multiply(x, 2, out=out)

    twice = dlbridge.wrap(double, "lent::twice(x: f32[n]) -> f32[n]", abi="python:numpy")
    for call in twice, jax.jit(twice):
        for lend in LENDS.values():
            y = call(fresh("float32"))
            lent = lend(y)
            y.delete()
            del lent
    """
    ).check()


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
def test_a_view_survives_the_end_of_jaxs_backend(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    framework("jax")
    pytest.importorskip("jax.extend.backend")
    run_python(
        JAX
        + """
    from jax.extend.backend import clear_backends

    for name, lend in LENDS.items():
        for is_dropped in (False, True):
            x = fresh("float32")
            expected = np.array(x)
            lent = lend(x)
            if is_dropped:
                del x
            clear_backends()
            others = [jnp.full(1000, 9.0).block_until_ready() for _ in range(20)]
            if name == "capsule":
                lent = dlbridge.from_dlpack(lent)
            if isinstance(lent, (np.ndarray, dlbridge.Tensor)):
                assert np.array_equal(dlbridge.to_numpy(lent), expected), name
            del lent
    """
    ).check()


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_arrays_may_be_deleted_at_exit_under_views(
    dtype: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    framework("jax")
    run_python(
        JAX
        + """
    import atexit
    arrays = [fresh(sys.argv[1]) for _ in LENDS]
    lent = [lend(x) for x, lend in zip(arrays, LENDS.values())]
    atexit.register(lambda: [x.delete() for x in arrays])
    """,
        dtype,
    ).check()


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
def test_a_jax_array_may_be_deleted_by_a_kernel_that_reads_it(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """As another thread may delete it while a kernel runs without the GIL."""
    framework("jax")
    run_python(
        JAX
        + CALLBACK
        + """
    for dtype, name in (("int8", "i8"), ("bfloat16", "bf16")):
        x = fresh(dtype)
        expected = np.array(x).view(np.uint8).tolist()

        def change():
            x.delete()
            others.extend(jnp.full(1000, 9, dtype).block_until_ready() for _ in range(20))

        kernel = dlbridge.wrap(
            reading(change, len(expected)), f"lent::read_{name}(x: {name}[n]) -> ()"
        )
        kernel(x)
        assert x.is_deleted()
        assert read.pop() == expected, dtype
    """
    ).check()


# ---- PyTorch -------------------------------------------------------------------------------------

# "general" is what serves every version of torch whose insides are not known.
PATHS = pytest.mark.parametrize("path", ["direct", pytest.param("general", marks=pytest.mark.full)])

TORCH = """
    import sys, weakref
    import numpy as np, torch
    import dlbridge
    from dlbridge.frameworks.torch import internals, proofs

    if sys.argv[1] == "general":
        proofs.PROVED.clear()
        proofs.kept = lambda: None  # nor is anything proved on this machine
    elif not internals.guard_is_open():
        print("skipped")
        sys.exit()

    class Watched(np.ndarray):
        pass

    def watched():
        "A tensor over an array, and a weak reference to that, which lives as its memory does."
        array = np.full(1000, 7.0, "float32").view(Watched)
        return torch.from_numpy(array), weakref.ref(array)

    def recorded(x):
        with dlbridge.receipts():
            return dlbridge.from_dlpack(x)

    LENDS = {
        "to_numpy": dlbridge.to_numpy,
        "from_dlpack": dlbridge.from_dlpack,
        "as_tensor": dlbridge.as_tensor,
        "recorded": recorded,
        "detached": lambda x: dlbridge.to_numpy(x, grad="detach"),
        "view": lambda x: dlbridge.from_dlpack(x)[:],
        "part": lambda x: dlbridge.from_dlpack(x[100:]),
        "convert_tree": lambda x: dlbridge.convert_tree({"a": [x]}, "numpy")["a"][0],
        "capsule": lambda x: dlbridge.from_dlpack(x).__dlpack__(max_version=(1, 1)),
    }
"""


def run_torch(run_python: Callable[..., Any], code: str, path: str) -> None:
    """Run the code on one of the two paths; skip where torch has no direct one."""
    if run_python(TORCH + code, path).check().strip() == "skipped":
        pytest.skip("this torch has no direct path")


@PATHS
@pytest.mark.preloaded("torch")
def test_a_view_survives_a_torch_tensor_that_gets_another_storage(
    path: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """As with Tensor.numpy(): what is lent is the storage, not the tensor."""
    framework("torch")
    code = """
    def set_data(x):
        x.data = torch.zeros(3)

    def swap(x):
        torch.utils.swap_tensors(x, torch.zeros(3))

    CHANGES = [set_data, lambda x: x.set_(torch.zeros(3)), swap]
    if sys.argv[1] == "direct":
        CHANGES.append(lambda x: x.share_memory_())  # moves it
    for name, lend in LENDS.items():
        for change in CHANGES:
            x, memory = watched()
            lent = lend(x)
            change(x)
            assert memory() is not None, (name, change)
            if name == "capsule":
                lent = dlbridge.from_dlpack(lent)
            assert np.all(np.asarray(lent) == 7), (name, change)
            del x, lent
            assert memory() is None, (name, change)
    """
    run_torch(run_python, code, path)


@PATHS
@pytest.mark.preloaded("torch")
def test_a_view_survives_the_cast_of_a_module(
    path: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """And whatever else gives a module other parameters."""
    framework("torch")
    code = """
    from torch.nn.utils import parametrizations, parametrize, vector_to_parameters

    class Twice(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    CHANGES = [
        lambda module: module.double(),
        lambda module: module.to(torch.float16),
        lambda module: module.to_empty(device="cpu"),
        lambda module: module.load_state_dict({"weight": torch.zeros(10, 100)}, assign=True),
        lambda module: vector_to_parameters(torch.zeros(1000), module.parameters()),
        lambda module: parametrize.register_parametrization(module, "weight", Twice()),
        lambda module: parametrizations.weight_norm(module),
    ]
    for number, change in enumerate(CHANGES):
        tensor, memory = watched()
        module = torch.nn.Linear(100, 10, bias=False)
        module.weight = torch.nn.Parameter(tensor[:1000].view(10, 100), requires_grad=False)
        del tensor
        (lent,) = dlbridge.convert_tree(list(module.parameters()), "numpy")
        change(module)
        assert memory() is not None, number
        others = [torch.full((10, 100), 9.0) for _ in range(20)]
        assert np.all(lent == 7), number
    """
    run_torch(run_python, code, path)


@PATHS
@pytest.mark.preloaded("torch")
def test_torch_refuses_to_resize_a_storage_that_was_lent(
    path: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """As after Tensor.numpy(), for every dtype; a tensor without elements lends nothing."""
    framework("torch")
    code = """
    DTYPES = [torch.float32, torch.bfloat16, torch.bool]
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # others export no float8
        DTYPES.append(torch.float8_e4m3fn)
    RESIZES = [
        lambda x: x.resize_(5000),
        lambda x: x.untyped_storage().resize_(0),
        lambda x: torch.cat([x, x], out=x.detach()),
    ]
    for lend in LENDS.values():
        for dtype in DTYPES:
            for resize in RESIZES:
                x = torch.ones(1000).to(dtype)
                lent = lend(x)
                try:
                    resize(x)
                except RuntimeError as error:
                    assert "not resizable" in str(error) or "not implemented" in str(error), error
                else:
                    raise AssertionError((lend, dtype, resize))
    empty = torch.empty(0)
    lent = dlbridge.from_dlpack(empty)
    assert torch.add(torch.ones(3), 1, out=empty).tolist() == [2, 2, 2]
    """
    run_torch(run_python, code, path)


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_shared_memory_is_kept_by_a_view_of_a_torch_tensor(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """It is unmapped with its storage, and torch must find that it is shared."""
    framework("torch")
    code = """
    def patiently(function):
        "Torch waits for its manager of shared memory for a second, which busy machines need."
        for _ in range(30):
            try:
                return function()
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
        raise AssertionError("the manager of shared memory does not answer")

    for strategy in torch.multiprocessing.get_all_sharing_strategies():
        torch.multiprocessing.set_sharing_strategy(strategy)
        for lend in LENDS.values():
            x = patiently(lambda: torch.full((1 << 20,), 7.0).share_memory_())
            lent = lend(x)
            assert x.is_shared()
            x.data = torch.zeros(1)
            if not hasattr(lent, "shape"):
                lent = dlbridge.from_dlpack(lent)
            assert np.all(np.asarray(lent) == 7)
    """
    run_torch(run_python, code, "direct")


@pytest.mark.preloaded("torch")
def test_a_view_survives_a_part_of_a_storage_that_goes_to_shared_memory(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """The tensors of torch.load(mmap=True) are such parts; the whole is freed with the last one."""
    framework("torch")
    code = """
    for strategy in torch.multiprocessing.get_all_sharing_strategies():
        torch.multiprocessing.set_sharing_strategy(strategy)
        for name, lend in LENDS.items():
            whole, memory = watched()
            x = torch.empty(0).set_(whole.untyped_storage()[400:])
            del whole
            lent = lend(x)
            x.share_memory_()
            assert memory() is not None, name
            assert x.is_shared() and x[0] == 7
            if name == "capsule":
                lent = dlbridge.from_dlpack(lent)
            assert np.all(np.asarray(lent) == 7), name
            del x, lent
            assert memory() is None, name
    """
    run_torch(run_python, code, "direct")


@PATHS
@pytest.mark.preloaded("torch")
def test_a_view_survives_a_torch_storage_that_goes_to_shared_memory(
    path: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """On the general path a lazy clone of the storage keeps the memory where it was."""
    framework("torch")
    code = """
    from multiprocessing.reduction import ForkingPickler

    MOVES = [
        lambda x: x.share_memory_(),
        lambda x: x[5:].share_memory_(),
        lambda x: x.untyped_storage().share_memory_(),
        lambda x: x.untyped_storage()._share_fd_cpu_(),
        lambda x: x.untyped_storage()._share_filename_cpu_(),
        lambda x: ForkingPickler.dumps(x),
        lambda x: torch.nn.ParameterList([torch.nn.Parameter(x)]).share_memory(),
    ]

    def moved(move, x, tries=30):
        try:
            return move(x)
        except RuntimeError as error:  # torch's manager of shared memory has a second to answer
            if "timed out" not in str(error) or tries == 0:
                raise
        return moved(move, x, tries - 1)

    for strategy in torch.multiprocessing.get_all_sharing_strategies():
        torch.multiprocessing.set_sharing_strategy(strategy)
        for move in MOVES:
            for name, lend in LENDS.items():
                x = torch.full((1000,), 7.0)
                lent = lend(x)
                second = dlbridge.to_numpy(x)
                moved(move, x)
                assert x.is_shared() and x[5] == 7, (name, move)
                x.fill_(3)
                others = [torch.full((1000,), 9.0) for _ in range(20)]
                del x
                if name == "capsule":
                    lent = dlbridge.from_dlpack(lent)
                assert np.all(np.asarray(lent) == 7) and np.all(second == 7), (name, move)
    """
    run_torch(run_python, code, path)


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_memory_of_others_does_not_go_to_shared_memory_under_a_view(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """On the general path, where torch has no lazy clones of it."""
    framework("torch")
    code = """
    def part():
        whole, memory = watched()
        return torch.empty(0).set_(whole.untyped_storage()[400:]), memory

    for make in (watched, part):
        for name, lend in LENDS.items():
            x, memory = make()
            lent = lend(x)
            try:
                x.share_memory_()
            except dlbridge.ExchangeError as error:
                assert error.reason == "lent", error
            else:
                raise AssertionError((name, "share_memory_ was not refused"))
            x.fill_(5)
            if name == "capsule":
                lent = dlbridge.from_dlpack(lent)
            assert np.all(np.asarray(lent) == 5), name
            del lent
            x.share_memory_()
            assert x.is_shared() and x[0] == 5 and memory() is None, name
    """
    run_torch(run_python, code, "general")


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_a_failed_move_to_shared_memory_leaves_a_torch_storage_as_it_was(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    framework("torch")
    code = """
    import resource

    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    x = torch.full((1000,), 7.0)
    lent = dlbridge.to_numpy(x)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        x.share_memory_()
    except RuntimeError:
        pass
    else:
        raise AssertionError("no file descriptor was needed")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    x.fill_(5)
    assert np.all(lent == 5)
    """
    run_torch(run_python, code, "general")


@PATHS
@pytest.mark.preloaded("torch")
def test_a_worker_of_a_data_loader_may_return_a_tensor_and_a_view_of_it(
    path: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """The worker moves the tensor to shared memory before it pickles the view."""
    framework("torch")
    code = """
    def collate(batch):
        a = torch.tensor(batch)
        return a, dlbridge.to_numpy(a)

    loader = torch.utils.data.DataLoader(
        list(range(40_000)), batch_size=20_000, collate_fn=collate, num_workers=1
    )
    for a, b in loader:
        assert np.array_equal(a.numpy(), b)
    """
    run_torch(run_python, code, path)


@pytest.mark.preloaded("torch")
def test_a_kernel_without_the_gil_keeps_the_memory_of_its_torch_tensors(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """As another thread may give a tensor other memory while a kernel runs."""
    framework("torch")
    code = """
    def set_data():
        x.data = torch.zeros(3)

    def share():
        x.share_memory_()

    schema = "lent::read(x: f32[n]) -> ()"
    for number, change in enumerate((set_data, lambda: x.set_(torch.zeros(3)), share)):
        x, memory = watched()
        expected = list(x.numpy().tobytes())

        def change_and_look():
            change()
            alive.append(memory() is not None)

        alive = []
        kernel = dlbridge.wrap(
            reading(change_and_look, len(expected)),
            f"lent::read_{number}(x: f32[n]) -> ()",
            gil="release",
        )
        kernel.torch(x)
        assert alive == [True], change
        assert read.pop() == expected
        assert memory() is None, change

    x = torch.ones(1000)  # of torch's own allocator: a call does not fix its size
    kernel = dlbridge.wrap(
        reading(lambda: x.untyped_storage().resize_(0), 4000), "lent::last(x: f32[n]) -> ()",
        gil="release",
    )
    kernel(x)
    assert read.pop() == list(np.ones(1000, "float32").tobytes())
    """
    run_torch(run_python, CALLBACK + code, "direct")


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_a_kernel_keeps_the_memory_also_where_torch_lends_none(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """As while another thread still tries the paths of torch."""
    framework("torch")
    code = """
    from dlbridge._core import _native as native

    native.torch_lending_close()
    assert native.torch_direct_allows(torch.ones(1))
    changes = (lambda: x.set_(torch.zeros(3)), lambda: setattr(x, "data", torch.zeros(3)))
    for number, change in enumerate(changes):
        x, memory = watched()
        expected = list(x.numpy().tobytes())

        def change_and_look():
            change()
            alive.append(memory() is not None)

        alive = []
        kernel = dlbridge.wrap(
            reading(change_and_look, len(expected)),
            f"lent::unlent_{number}(x: f32[n]) -> ()",
            gil="release",
        )
        kernel(x)
        assert alive == [True], number
        assert read.pop() == expected
    """
    run_torch(run_python, CALLBACK + code, "direct")


@PATHS
@pytest.mark.preloaded("torch")
def test_an_operator_of_the_dispatcher_keeps_memory_and_shapes_of_its_tensors(
    path: str, framework: Any, run_python: Callable[..., Any]
) -> None:
    """It runs without the GIL: another thread may change the tensor while the kernel runs.

    Calls that write, have `out`, or are inside of compiled graphs get there. Many dimensions take
    more room than most calls need.
    """
    framework("torch")
    code = """
    def set_data():
        x.data = torch.zeros(2, 3)

    CHANGES = [set_data, lambda: x.set_(torch.zeros(2, 3)), lambda: x.untyped_storage().resize_(0)]
    if sys.argv[1] == "direct":
        CHANGES.append(lambda: x.share_memory_())
    FORMS = {
        "in place": ("(x!: f32[...]) -> ()", lambda op: op(x)),
        "out": ("(x: f32[...]) -> f32[...]", lambda op: op.out(x, out)),
        "as out": ("(x: f32[...]) -> f32[...]", lambda op: op.out(other, x)),
    }
    number = 0
    for form, (schema, call) in FORMS.items():
        for change in CHANGES:
            for shape in ((1000,), (2,) + (1,) * 62 + (500,)):
                x = torch.full(shape, 7.0)
                other, out = torch.full(shape, 7.0), torch.zeros(shape)
                seen = []

                def change_and_look(change=change):
                    try:
                        change()
                    except RuntimeError as error:  # an earlier exchange has fixed its size
                        assert "not resizable" in str(error)
                    others.extend(torch.full((1000,), 9.0) for _ in range(20))

                number += 1
                which = form == "as out"
                kernel = dlbridge.wrap(
                    looking(change_and_look, which, seen), f"lent::op_{number}{schema}",
                    gil="release",
                )
                call(getattr(torch.ops.lent, f"op_{number}"))
                assert seen == [(shape, {7.0})], (form, change, len(shape))
    """
    run_torch(run_python, LOOKING + code, path)


# ---- NumPy, and objects of Python with a buffer --------------------------------------------------


def shared_memory() -> SharedMemory:
    """Return shared memory that is unlinked already: it goes with the last who has it open."""
    memory = SharedMemory(create=True, size=4096)
    memory.unlink()
    return memory


def mapped(path: Path) -> np.memmap[Any, Any]:
    path.write_bytes(bytes(4096))
    return np.memmap(path, mode="r+", shape=(4096,))


# A producer, and the call by which it would free or move its memory.
REFUSED: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any]]] = {
    "ndarray.resize": (lambda _: np.zeros(8), lambda x: x.resize(100_000)),
    "bytearray.extend": (lambda _: bytearray(8), lambda x: x.extend(bytes(100_000))),
    "bytearray.clear": (lambda _: bytearray(8), lambda x: x.clear()),
    "array.append": (lambda _: array("d", [7] * 8), lambda x: x.append(7)),
    "mmap.close": (lambda _: mmap.mmap(-1, 4096), lambda x: x.close()),
    "mmap.resize": (lambda _: mmap.mmap(-1, 4096), lambda x: x.resize(8192)),
    "memmap.close": (lambda path: mapped(path / "mapped"), lambda x: x._mmap.close()),
    "BytesIO.close": (lambda _: io.BytesIO(bytes(8)), lambda x: x.close()),
    "SharedMemory.close": (lambda _: shared_memory(), lambda x: x.close()),
}
# How each of them gets to dlbridge.
ROUTES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "memoryview": memoryview,
    "ndarray": lambda x: np.ndarray((8,), np.uint8, buffer=x),
    "part of an ndarray": lambda x: np.ndarray((8,), np.uint8, buffer=x)[2:],
    "frombuffer": lambda x: np.frombuffer(x, np.uint8),
    "subclass": lambda x: np.ndarray((8,), np.uint8, buffer=x).view(np.recarray),
}
LENDS: dict[str, Callable[[Any], Any]] = {
    "from_dlpack": dlbridge.from_dlpack,
    "as_tensor": dlbridge.as_tensor,
    "to_torch": dlbridge.to_torch,
    "copied views": lambda x: dlbridge.from_dlpack(dlbridge.to_numpy(dlbridge.from_dlpack(x)))[1:],
}


@pytest.mark.parametrize("lend", LENDS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("call", REFUSED)
def test_memory_is_not_freed_or_moved_under_a_view(
    call: str, route: str, lend: str, tmp_path: Path, framework: Any
) -> None:
    """NumPy alone lets the memory of `np.ndarray(buffer=...)` go."""
    make, change = REFUSED[call]
    producer = make(tmp_path)
    memory = {"BytesIO.close": "getbuffer", "SharedMemory.close": "buf"}.get(call)
    source = producer if memory is None else getattr(producer, memory)
    source = source() if callable(source) else source
    if lend == "to_torch":
        framework("torch")
    exchanged = ROUTES[route](source)
    del source
    lent = LENDS[lend](exchanged)
    del exchanged
    with pytest.raises((BufferError, ValueError)):
        change(producer)
    assert np.asarray(lent).shape
    del lent
    if call != "ndarray.resize":
        change(producer)


def test_a_memoryview_may_be_released_under_a_view() -> None:
    memory = memoryview(bytearray(b"\7" * 1000))
    lent = dlbridge.from_dlpack(memory)
    memory.release()
    assert bytes(lent) == b"\7" * 1000


LIMITS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "ndarray.resize": (lambda: np.zeros(8), lambda x: x.resize(100_000, refcheck=False)),
    "ctypes.resize": (lambda: (ctypes.c_double * 8)(), lambda x: ctypes.resize(x, 100_000)),
}


def test_torch_does_not_hold_a_bytearray_that_it_was_made_of(framework: Any) -> None:
    """A limit of torch.frombuffer: it keeps the object, and gives up the buffer."""
    torch = framework("torch")
    producer = bytearray(b"\7" * 64)
    lent = dlbridge.to_numpy(torch.frombuffer(producer, dtype=torch.uint8))
    assert lent.tobytes() == producer
    producer.extend(bytes(100_000))
    del lent
    lent = dlbridge.to_torch(dlbridge.from_dlpack(producer))  # the way that holds it
    with pytest.raises(BufferError):
        producer.extend(bytes(100_000))
    del lent


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="needs Linux's madvise")
def test_pages_that_a_mapping_does_not_need_are_zeroed_under_a_view() -> None:
    """A limit: the mapping stays, as it must, and its contents go."""
    memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"\7" * 4096)
    lent = dlbridge.from_dlpack(memory)
    memory.madvise(mmap.MADV_DONTNEED)
    assert bytes(lent) == bytes(4096)
    del lent
    memory.close()


@pytest.mark.parametrize("call", LIMITS)
def test_some_calls_move_memory_unasked(call: str) -> None:
    """Limits of the producers: they do not look who has the memory, nor could a view stop them."""
    make, change = LIMITS[call]
    producer = make()
    lent = dlbridge.from_dlpack(producer)
    change(producer)
    assert lent.data_ptr != dlbridge.from_dlpack(producer).data_ptr


# ---- other frameworks ----------------------------------------------------------------------------


@pytest.mark.parametrize("lend", ["from_dlpack", "to_numpy"])
def test_a_view_of_a_tensorflow_variable_keeps_the_value_of_then(lend: str, framework: Any) -> None:
    """TensorFlow writes to a buffer only where nobody else has it."""
    tf = framework("tensorflow")
    changes: list[Callable[[Any], Any]] = [
        lambda v: v.assign(tf.zeros(1000)),
        lambda v: v.assign_add(tf.ones(1000)),
        lambda v: v.scatter_nd_update([[0]], [1.0]),
    ]
    for change in changes:
        variable = tf.Variable(tf.fill([1000], 7.0))
        lent = getattr(dlbridge, lend)(variable)
        change(variable)
        del variable
        assert np.all(np.asarray(lent) == 7)


@pytest.mark.parametrize("lend", ["from_dlpack", "to_numpy"])
def test_a_view_of_an_mlx_array_keeps_its_values(lend: str, framework: Any) -> None:
    """An update makes new memory, and an operation reuses only what nobody else has."""
    mx = framework("mlx.core")
    for change in (lambda x: x.__setitem__(slice(None), 9.0), lambda x: x.__iadd__(1)):
        x = mx.full((1000,), 7.0)
        mx.eval(x)
        lent = getattr(dlbridge, lend)(x)
        change(x)
        mx.eval(x)
        del x
        mx.clear_cache()
        assert np.all(np.asarray(dlbridge.to_numpy(lent)) == 7)


def set_bytes(paddle: Any, x: Any) -> None:
    x.get_tensor().set(np.zeros(3000, "float32"), paddle.CPUPlace())


PADDLE: dict[str, Callable[[Any, Any], Any]] = {
    "data": lambda paddle, x: setattr(x, "data", paddle.zeros([3])),
    "set_": lambda paddle, x: x.set_(paddle.zeros([3])),
    "copy_": lambda paddle, x: x.copy_(paddle.zeros([3000]), True),
    "cast_": lambda _, x: x.cast_("float64"),
    "assign": lambda paddle, x: paddle.assign(paddle.zeros([3000]), output=x),
    "assign another dtype": lambda paddle, x: paddle.assign(
        paddle.zeros([1000], "float64"), output=x
    ),
    "out": lambda paddle, x: paddle.add(paddle.zeros([3000]), paddle.zeros([3000]), out=x),
    "get_tensor().set": set_bytes,
    "_share_buffer_to": lambda paddle, x: paddle.zeros([1000])._share_buffer_to(x),
    "_share_filename": lambda _, x: x.get_tensor()._share_filename(False),
    "_clear_data": lambda _, x: x._clear_data(),
}


@pytest.mark.parametrize("lend", ["from_dlpack", "to_numpy"])
@pytest.mark.parametrize("call", PADDLE)
def test_a_view_survives_a_paddle_tensor_that_gets_other_memory(
    call: str, lend: str, framework: Any
) -> None:
    """What is lent is the allocation, which Paddle counts."""
    paddle = framework("paddle")
    x = paddle.full([1000], 7.0)
    lent = getattr(dlbridge, lend)(x)
    PADDLE[call](paddle, x)
    assert x.data_ptr() != np.asarray(lent).ctypes.data
    del x
    others = [paddle.full([1000], 9.0) for _ in range(20)]
    assert np.all(np.asarray(lent) == 7)
    del others


@pytest.mark.parametrize("lend", ["from_dlpack", "to_numpy"])
def test_mxnet_writes_later_to_memory_that_a_view_holds(lend: str, framework: Any) -> None:
    """Its engine runs operations when it gets to them."""
    mxnet = framework("mxnet")
    x = mxnet.nd.full((1000,), 7.0)
    lent = getattr(dlbridge, lend)(x)
    x[:] = 3.0
    mxnet.nd.add_n(x, x, out=x)
    x.wait_to_read()
    assert np.all(np.asarray(lent) == 6)
    with pytest.raises(mxnet.MXNetError):
        mxnet.nd.concat(x, x, dim=0, out=x)
    del x
    others = [mxnet.nd.full((1000,), 9.0) for _ in range(20)]
    mxnet.nd.waitall()
    assert np.all(np.asarray(lent) == 6)
    del others


def test_an_export_of_mxnet_waits_for_what_is_queued(framework: Any) -> None:
    mxnet = framework("mxnet")
    x = mxnet.nd.full((300, 300), 1.0)
    product = mxnet.nd.dot(x, x)  # reads x when the engine gets to it
    lent = dlbridge.to_numpy(x)
    lent[...] = 100
    assert np.all(product.asnumpy() == 300)
    x[:] = mxnet.nd.dot(product, product) * 0 + 5
    assert np.all(dlbridge.to_numpy(x) == 5)


def test_an_array_of_dpnp_has_no_call_that_frees_or_moves_its_memory(framework: Any) -> None:
    dpnp = framework("dpnp")
    memory = framework("dpctl.memory")
    for kind in (dpnp.ndarray, dpnp.tensor.usm_ndarray, memory.MemoryUSMDevice):
        assert not set(dir(kind)) & {"close", "delete", "free", "release", "resize"}
    x = dpnp.full(1000, 7, dtype="float32")
    lent = dlbridge.from_dlpack(x)
    with pytest.raises(AttributeError):
        x.data = dpnp.zeros(3).data
    with pytest.raises(ValueError, match="shape"):
        dpnp.add(dpnp.zeros(3000), 1, out=x)
    del x
    others = [dpnp.full(1000, 9, dtype="float32") for _ in range(20)]
    assert np.all(dlbridge.to_numpy(lent, device="cpu") == 7)
    del others


def test_an_ort_value_is_never_resized(framework: Any) -> None:
    ort = framework("onnxruntime")
    x = ort.OrtValue.ortvalue_from_numpy(np.full(1000, 7, "float32"))
    lent = dlbridge.to_numpy(x)
    with pytest.raises(RuntimeError, match="size"):
        x.update_inplace(np.zeros(3000, "float32"))
    del x
    others = [np.full(1000, 9, "float32") for _ in range(20)]
    assert np.all(lent == 7)
    del others


def test_a_result_of_onnxruntime_outlives_its_session(framework: Any) -> None:
    ort, helper = framework("onnxruntime"), pytest.importorskip("onnx.helper")
    kind = pytest.importorskip("onnx").TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, [100_000]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = {"x": ort.OrtValue.ortvalue_from_numpy(np.full(100_000, 3.5, "float32"))}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run_with_ort_values(None, x)
    lent = dlbridge.to_numpy(y)
    del y
    session.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(0 * lent)})
    del session
    others = [np.full(100_000, 9, "float32") for _ in range(20)]
    assert np.all(lent == 7)
    del others


def test_an_io_binding_of_onnxruntime_writes_its_results_again(framework: Any) -> None:
    """A limit of the runtime: what `get_outputs` returned is memory of the next run as well."""
    ort, onnx = framework("onnxruntime"), framework("onnx")
    helper = onnx.helper
    values = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", *([v] for v in values))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_output("y", "cpu")
    views = []
    for number in (1, 2):
        x = ort.OrtValue.ortvalue_from_numpy(np.full(1000, number, "float32"))
        binding.bind_ortvalue_input("x", x)
        session.run_with_iobinding(binding)
        views.append(dlbridge.to_numpy(binding.get_outputs()[0]))
    assert np.all(views[0] == -2)
    assert np.shares_memory(*views)
    binding.clear_binding_outputs()
    del binding, session
    others = [np.full(1000, 9, "float32") for _ in range(20)]
    assert np.all(views[0] == -2)
    del others


def test_a_tensor_of_openvino_moves_when_it_grows(framework: Any) -> None:
    """A limit of OpenVINO: its own `tensor.data` does not stop it either."""
    openvino = framework("openvino")
    tensor = openvino.Tensor(openvino.Type.f32, openvino.Shape([1000]))
    lent = dlbridge.from_dlpack(tensor)
    tensor.shape = [1000, 100]
    assert lent.data_ptr != tensor.data.ctypes.data
    shared = openvino.Tensor(np.full(1000, 7, "float32"), shared_memory=True)
    lent = dlbridge.from_dlpack(shared)
    with pytest.raises(RuntimeError):
        shared.shape = [1000, 100]
    assert lent.data_ptr == shared.data.ctypes.data


def test_an_array_of_warp_is_never_resized(framework: Any) -> None:
    warp = framework("warp")
    x = warp.full(1000, 7.0, dtype=warp.float32, device="cpu")
    lent = dlbridge.to_numpy(x)
    with pytest.raises(RuntimeError, match="size"):
        x.assign(np.zeros(3000, "float32"))
    del x
    others = [warp.full(1000, 9.0, dtype=warp.float32, device="cpu") for _ in range(20)]
    assert np.all(lent == 7)
    del others


COLUMNS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "enlarge": ("pandas", lambda x: x.__setitem__(2000, 3.0)),
    "append": ("polars", lambda x: x.append(x)),
    "extend": ("polars", lambda x: x.extend(x)),
    "set": ("polars", lambda x: x.__setitem__(0, 3.0)),
    "sort": ("polars", lambda x: x.sort(in_place=True, descending=True)),
}


@pytest.mark.parametrize("call", COLUMNS)
def test_a_view_survives_a_column_that_gets_other_memory(call: str, framework: Any) -> None:
    name, change = COLUMNS[call]
    x = framework(name).Series(np.full(1000, 7, "float32"))
    lent = dlbridge.to_numpy(x)
    change(x)
    del x
    others = [np.full(1000, 9, "float32") for _ in range(20)]
    assert np.all(lent == 7)
    del others


def test_a_mapped_file_of_pyarrow_may_be_closed_under_a_view(
    framework: Any, tmp_path: Path
) -> None:
    pa = framework("pyarrow")
    (tmp_path / "file").write_bytes(b"\7" * 4096)
    file = pa.memory_map(str(tmp_path / "file"))
    lent = dlbridge.from_dlpack(file.read_buffer(100))
    file.close()
    assert np.all(np.asarray(lent) == 7)


def test_a_resizable_buffer_of_pyarrow_moves_unasked(framework: Any) -> None:
    """A limit of pyarrow: memoryview(buffer) does not stop it either."""
    pa = framework("pyarrow")
    buffer = pa.allocate_buffer(100, resizable=True)
    lent = dlbridge.from_dlpack(buffer)
    buffer.resize(1 << 22)
    assert lent.data_ptr != buffer.address


@pytest.mark.preloaded("torch")
def test_a_shared_window_of_mpi4py_is_freed_unasked(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """A limit of MPI: Win.Free frees the memory, whoever has a view."""
    framework("mpi4py")
    run_python(
        """
        from mpi4py import MPI
        import dlbridge

        window = MPI.Win.Allocate_shared(4096, comm=MPI.COMM_SELF)
        lent = dlbridge.from_dlpack(window.tomemory())
        assert lent.data_ptr == window.tomemory().address
        window.Free()
        """
    ).check()


def test_a_tensor_of_dlbridge_has_no_call_that_frees_or_moves_its_memory() -> None:
    names = set(dir(dlbridge.zeros((3,), "float32")))
    assert not names & {"close", "data", "delete", "free", "release", "resize", "set_", "resize_"}


@pytest.mark.preloaded("torch")
def test_a_request_of_mpi_that_is_under_way_keeps_the_memory_of_a_torch_tensor(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    framework("torch")
    framework("mpi4py")
    code = """
    from dlbridge import mpi

    def large():
        array = np.full(1 << 18, 7.0, "float32").view(Watched)
        return torch.from_numpy(array), weakref.ref(array)

    (x, sent), (y, received) = large(), large()
    requests = [mpi.irecv(0, out=y), mpi.isend(x, 0)]
    x.data, y.data = torch.zeros(3), torch.zeros(3)
    assert sent() is not None and received() is not None
    for request in requests:
        request.wait()
    del request, requests
    assert sent() is None
    """
    run_torch(run_python, code, "general")


@pytest.mark.preloaded("torch")
def test_a_feed_of_a_graph_keeps_the_memory_of_a_torch_tensor(
    framework: Any, run_python: Callable[..., Any]
) -> None:
    """The tensor gets other memory during the run, before the feed is read."""
    framework("torch")
    code = """
    import dlbridge.graph as tf

    x, memory = watched()
    alive = []

    def change():
        x.data = torch.zeros(3)
        alive.append(memory() is not None)
        return np.float32(1)

    fed = tf.placeholder(tf.float32, [1000])
    changed = tf.py_func(change, [], tf.float32)
    with tf.control_dependencies([changed]):
        result = tf.square(fed)
    with tf.Session() as session:
        assert np.all(session.run(result, {fed: x}) == 49)
    assert alive == [True]
    """
    run_torch(run_python, code, "general")
