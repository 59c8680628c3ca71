"""Deleters where Python is not: without the GIL, on foreign threads, after the interpreter's end.

And the consumers and failures that make a release happen twice, or not at all, in others.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlpack_peers import (
    OPENCL,
    READ_ONLY,
    Consumer,
    Legacy,
    ModernProducer,
    NativePeer,
    Record,
    Versioned,
    call_deleter,
    capsule_address,
    capsule_name,
    describe,
    exported,
    on_threads,
)

import dlbridge
from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange.adapter import adapter

VERSIONS = pytest.mark.parametrize("versioned", [False, True], ids=["legacy", "versioned"])


def vector(size: int = 8) -> np.ndarray[Any, Any]:
    """Return float64[size], 0 to size - 1."""
    return np.arange(size, dtype=np.float64)


# How a Tensor may own its memory; each is released by other code.
OWNERS: dict[str, Callable[[], native.TensorBase]] = {
    "allocator": lambda: dlbridge.zeros((8,), "float64"),
    "object": lambda: dlbridge.from_dlpack(vector()),
    "managed": lambda: dlbridge.from_dlpack(ModernProducer(vector())),
    "view": lambda: dlbridge.from_dlpack(vector(16))[::2],
}


def exports(owner: str, count: int, versioned: bool) -> list[Consumer]:
    """Return consumers that are the only ones who hold their memory."""
    return [Consumer(exported(OWNERS[owner](), versioned)) for _ in range(count)]


# ---- whose thread, whose GIL ---------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("owner", OWNERS)
def test_our_deleter_runs_without_the_gil_on_a_thread_that_python_never_saw(
    owner: str, versioned: bool, native_peer: NativePeer
) -> None:
    """torch, JAX and TensorFlow call deleters wherever the last reference dies."""
    before = native.live()
    native_peer.delete_on_threads(exports(owner, 1, versioned))
    assert native.live() == before


@VERSIONS
@pytest.mark.parametrize("owner", OWNERS)
def test_many_exports_may_be_deleted_by_many_threads_at_once(
    owner: str, versioned: bool, native_peer: NativePeer
) -> None:
    before = native.live()
    native_peer.delete_on_threads(exports(owner, 400, versioned), threads=8)
    assert native.live() == before


@VERSIONS
def test_one_buffer_may_be_released_by_many_threads_at_once(
    versioned: bool, native_peer: NativePeer
) -> None:
    """The count is atomic: the last of them all releases, and only that one."""
    producer = ModernProducer(vector())
    tensor = dlbridge.from_dlpack(producer)
    consumers = [Consumer(exported(tensor, versioned)) for _ in range(400)]
    native_peer.delete_on_threads(consumers[:200], threads=8)
    del tensor
    assert producer.deleted == 0
    native_peer.delete_on_threads(consumers[200:], threads=8)
    assert producer.deleted == 1


def test_an_array_kept_for_a_consumer_is_given_back_from_a_foreign_thread(
    native_peer: NativePeer,
) -> None:
    """The one case in which our deleter needs Python: it takes the GIL itself."""
    array = vector()
    references = sys.getrefcount(array)
    consumer = Consumer(dlbridge.from_dlpack(array).__dlpack__())
    native_peer.delete_on_threads([consumer])
    assert sys.getrefcount(array) == references


@VERSIONS
def test_the_producers_deleter_is_called_in_the_thread_that_releases(
    versioned: bool, native_peer: NativePeer
) -> None:
    """Nothing is put off or handed to another thread; the peer is told how it was called."""
    what = describe(vector())
    record = native_peer.lend(what, versioned=versioned)
    tensor = native.take_capsule(native_peer.capsule(record, versioned=versioned))
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 3)))
    del tensor
    assert Record.from_address(record).calls == 0
    native_peer.delete_on_threads([consumer])
    seen = Record.from_address(record)
    assert (seen.calls, seen.calls_with_gil) == (1, 0)
    assert seen.thread not in (0, threading.get_ident())
    native_peer.held.peer_free(record)


def test_a_deleter_that_runs_python_may_use_dlbridge_itself() -> None:
    """Re-entrance: a release inside a release, while the first Tensor is half gone."""
    produced = []

    class Last:
        def __del__(self) -> None:
            produced.append(dlbridge.to_numpy(dlbridge.from_dlpack(vector())).sum())

    producer = ModernProducer(describe(vector(), keeps=Last()))
    producer.what = describe(vector())
    tensor = dlbridge.from_dlpack(ModernProducer(describe(vector(), keeps=Last())))
    del tensor
    gc.collect()
    assert produced.count(28.0) == len(produced) >= 2


def test_a_release_does_not_swallow_the_exception_that_is_on_its_way() -> None:
    """The peer's deleter runs Python code while the exception unwinds the frame."""

    def fail() -> None:
        tensor = dlbridge.from_dlpack(ModernProducer(vector()))
        assert tensor.shape == (8,)
        raise LookupError("on its way")

    for _ in range(10):
        with pytest.raises(LookupError, match="on its way"):
            fail()


# ---- threads -------------------------------------------------------------------------------------


def test_eight_threads_exchange_at_once() -> None:
    """Type cache, counts and deleters are shared by all; values must be each thread's own."""

    def work(number: int) -> None:
        array = np.full((4, 4), number, np.float32)
        for i in range(300):
            tensor = dlbridge.from_dlpack(array)
            producer = ModernProducer(array)
            other = dlbridge.from_dlpack(producer)
            result = dlbridge.to_numpy(tensor[i % 4])
            consumer = Consumer(other.__dlpack__(max_version=(1, 3)))
            del tensor, other
            assert (result == number).all()
            assert consumer.data == array.ctypes.data
            consumer.release()
            assert producer.deleted == 1

    on_threads(8, work)


def test_one_tensor_may_be_exported_by_eight_threads_at_once() -> None:
    array = vector()
    tensor = dlbridge.from_dlpack(array)

    def work(number: int) -> None:
        for _ in range(500):
            consumer = Consumer(exported(tensor, number % 2 == 0))
            assert consumer.data == array.ctypes.data
            consumer.release()

    on_threads(8, work)
    assert tensor.buffer.refcount == 1


@VERSIONS
def test_of_eight_threads_that_take_one_capsule_one_gets_it(versioned: bool) -> None:
    """Check and rename happen in one go; the others are told that it was consumed."""
    for _ in range(50):
        producer = ModernProducer(vector())
        capsule = producer.capsule(versioned)
        taken: list[native.TensorBase] = []
        refused: list[str] = []

        def work(
            _: int, capsule: object = capsule, taken: Any = taken, refused: Any = refused
        ) -> None:
            try:
                taken.append(native.take_capsule(capsule))
            except ExchangeError as error:
                refused.append(error.reason)

        on_threads(8, work)
        assert len(taken) == 1
        assert refused == ["consumed"] * 7
        assert producer.deleted == 0
        taken.clear()
        assert producer.deleted == 1


# ---- broken consumers ----------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("owner", OWNERS)
def test_a_consumer_that_calls_the_deleter_and_drops_the_capsule_does_no_harm(
    owner: str, versioned: bool
) -> None:
    """torch and TensorFlow do it when they refuse a device: the destructor then deletes again."""
    before = native.live()
    for _ in range(20):
        capsule = exported(OWNERS[owner](), versioned)
        fresh = Consumer(exported(OWNERS[owner](), versioned))
        call_deleter(capsule_address(capsule), Versioned if versioned else Legacy)
        fresh.release()
        del capsule
    assert native.live() == before


@VERSIONS
def test_a_deleter_called_again_by_other_threads_releases_once(
    versioned: bool, native_peer: NativePeer
) -> None:
    """The mark that says "released" is taken by one caller only."""
    for _ in range(30):
        producer = ModernProducer(vector())
        consumer = Consumer(exported(dlbridge.from_dlpack(producer), versioned))
        same = [consumer] + [_again(consumer) for _ in range(7)]
        native_peer.delete_on_threads(same, threads=8)
        assert producer.deleted == 1


def _again(consumer: Consumer) -> Consumer:
    """Return a second consumer that wrongly believes to own the same managed tensor."""
    other = Consumer.__new__(Consumer)
    other.__dict__.update(consumer.__dict__)
    return other


@VERSIONS
def test_torch_refusing_a_device_releases_once(versioned: bool, framework: Any) -> None:
    """torch 2.13 calls the deleter, leaves the capsule unconsumed, and its destructor deletes."""
    torch = framework("torch")
    producer = ModernProducer(describe(vector(), device=(OPENCL, 0)))
    tensor = dlbridge.from_dlpack(producer)
    before = native.live()
    for _ in range(20):
        with pytest.raises((RuntimeError, BufferError)):
            torch.utils.dlpack.from_dlpack(exported(tensor, versioned))
    assert native.live() == before
    assert producer.deleted == 0
    del tensor
    assert producer.deleted == 1


@VERSIONS
def test_a_consumer_that_never_takes_its_capsule_leaves_it_to_the_destructor(
    versioned: bool,
) -> None:
    """mpi4py reads a capsule without renaming it and relies on the destructor."""
    producer = ModernProducer(vector())
    capsule = exported(dlbridge.from_dlpack(producer), versioned)
    assert producer.deleted == 0
    del capsule
    assert producer.deleted == 1


# ---- failures in between -------------------------------------------------------------------------


@VERSIONS
def test_a_failure_between_take_and_tensor_releases_exactly_once(
    versioned: bool, native_peer: NativePeer
) -> None:
    """Memory runs out at each allocation in turn, after the capsule was renamed."""
    testcapi = pytest.importorskip("_testcapi", reason="this Python has no _testcapi")
    what = describe(vector())
    outcomes = set()
    for start in range(12):
        record = native_peer.lend(what, versioned=versioned)
        capsule = native_peer.capsule(record, versioned=versioned)
        tensor = None
        testcapi.set_nomemory(start, 0)
        try:
            tensor = native.take_capsule(capsule)
        except MemoryError:
            pass
        finally:
            testcapi.remove_mem_hooks()
        outcomes.add(tensor is not None)
        assert capsule_name(capsule).startswith("used_")
        del tensor, capsule
        assert Record.from_address(record).calls == 1
        native_peer.held.peer_free(record)
    assert outcomes == {False, True}, "some must fail, and some succeed"


@VERSIONS
def test_a_failed_export_releases_what_it_took(versioned: bool) -> None:
    testcapi = pytest.importorskip("_testcapi", reason="this Python has no _testcapi")
    tensor = dlbridge.from_dlpack(vector())
    before = native.live()
    for start in range(10):
        capsule = None
        testcapi.set_nomemory(start, 0)
        try:
            capsule = exported(tensor, versioned)
        except MemoryError:
            pass
        finally:
            testcapi.remove_mem_hooks()
        del capsule
        assert native.live() == before
        assert tensor.buffer.refcount == 1


def test_a_subclass_that_cannot_be_made_gives_the_memory_back() -> None:
    """The class for a view is the caller's choice; a wrong one must not cost the buffer."""
    tensor = dlbridge.from_dlpack(vector())
    for cls in (int, 3, "Tensor"):
        with pytest.raises(TypeError):
            tensor._view((8,), (1,), cls=cls)
    for shape, strides in [((8,), (1, 1)), ((-1,), (1,)), ((2**62, 4), (1, 1)), (("x",), (1,))]:
        with pytest.raises((ValueError, TypeError, BufferError)):
            tensor._view(shape, strides)
    assert tensor.buffer.refcount == 1


# ---- who keeps whom ------------------------------------------------------------------------------


@VERSIONS
def test_an_empty_tensor_at_a_null_pointer_is_released(versioned: bool) -> None:
    """Without bytes there is something to give back all the same, once, also through an export."""
    producer = ModernProducer(describe(vector()).but(data=None, shape=(0, 3), strides=(3, 1)))
    tensor = native.take_capsule(producer.capsule(versioned))
    consumer = Consumer(exported(tensor, versioned))
    del tensor
    assert producer.deleted == 0
    consumer.release()
    assert producer.deleted == 1


def test_views_and_exports_keep_the_memory_and_the_last_one_releases_it() -> None:
    producer = ModernProducer(vector())
    tensor = dlbridge.from_dlpack(producer)
    keepers: list[Any] = [tensor[2:], tensor[0], tensor.reshape(2, 4).T, memoryview(tensor[1:])]
    keepers += [np.asarray(tensor), tensor.__dlpack__(), tensor.buffer]
    keepers.append(dlbridge.from_dlpack(tensor))
    del tensor
    while keepers:
        gc.collect()
        assert producer.deleted == 0, f"{len(keepers)} keepers left"
        keepers.pop()
    assert producer.deleted == 1


def test_a_conversion_keeps_the_producers_memory_and_nothing_else() -> None:
    array = vector()
    watch = weakref.ref(array)
    result = dlbridge.to_numpy(dlbridge.from_dlpack(array)[::2])
    del array
    assert watch() is not None
    assert result.sum() == 12.0
    del result
    gc.collect()
    assert watch() is None


def test_a_reference_cycle_through_a_tensor_is_collected() -> None:
    class Named(dlbridge.Tensor):
        pass

    producer = ModernProducer(vector())
    tensor = dlbridge.from_dlpack(producer)._view((8,), (1,), cls=Named)
    tensor.itself = tensor
    del tensor
    gc.collect()
    assert producer.deleted == 1


class Array(np.ndarray[Any, Any]):
    """An array that can hold attributes."""


class Bytes(bytearray):
    """Memory that can hold attributes."""


class Fields:
    """An object that says where its memory is, and can hold attributes."""

    def __init__(self) -> None:
        self.memory = vector()
        self.__array_interface__ = self.memory.__array_interface__


class Buffered:
    """An object with its memory in the buffer of another one, and attributes."""

    def __init__(self) -> None:
        self.__array_interface__ = {
            "shape": (8,),
            "typestr": "<f8",
            "data": Bytes(64),
            "version": 3,
        }


REFERRING: dict[str, Callable[[], Any]] = {
    "numpy": lambda: vector().view(Array),
    "buffer": lambda: Bytes(64),
    "array interface": Fields,
    "array interface over a buffer": Buffered,
}


@pytest.mark.parametrize("make", REFERRING.values(), ids=REFERRING)
@pytest.mark.parametrize("views", [0, 2])
def test_an_object_that_refers_to_a_tensor_over_it_is_collected(
    make: Callable[[], Any], views: int
) -> None:
    before = native.live()
    owner: Any = make()
    watch = weakref.ref(owner)
    owner.tensor = dlbridge.from_dlpack(owner)
    owner.views = [owner.tensor[i:] for i in range(views)]
    tensor = owner.tensor
    del owner
    gc.collect()
    assert watch() is not None, "a Tensor is still in use"
    assert tensor.tolist() == dlbridge.from_dlpack(watch()).tolist()
    export = tensor.__dlpack__()
    del tensor
    gc.collect()
    assert watch() is not None, "an export is still in use"
    del export
    gc.collect()
    assert watch() is None
    assert native.live() == before


def test_only_tensors_that_can_be_part_of_a_cycle_cost_the_collector_anything() -> None:
    for plain in (vector(), bytes(8), bytearray(8), ModernProducer(vector())):
        assert not gc.is_tracked(dlbridge.from_dlpack(plain))
    assert not gc.is_tracked(dlbridge.zeros((8,), "float64"))
    assert gc.is_tracked(dlbridge.from_dlpack(vector().view(Array)))


def test_the_class_of_a_tensor_stays() -> None:
    """Subclasses have a header of the collector, which a Tensor may lack."""

    class Named(dlbridge.Tensor):
        __slots__ = ()

    tensor = dlbridge.from_dlpack(vector())
    with pytest.raises(TypeError, match="deallocator"):
        tensor.__class__ = Named
    named = tensor._view((8,), (1,), cls=Named)
    with pytest.raises(TypeError, match="deallocator"):
        named.__class__ = dlbridge.Tensor


def test_garbage_with_a_memoryview_under_a_tensor_is_collected() -> None:
    """The collector must not reach that view: CPython crashes on one that has exports."""
    gc.collect()
    for _ in range(10):
        tensor = dlbridge.from_buffer(bytearray(17), "uint8")
        garbage: list[Any] = [tensor[1:]]
        garbage.append(garbage)
        del tensor, garbage
    gc.collect()


def test_a_torch_tensor_that_refers_to_torchs_own_view_of_it_is_not_collected(
    framework: Any,
) -> None:
    """A limit of torch: C++ holds the tensor, unseen by Python."""
    torch = framework("torch")
    owner = torch.zeros(8)
    watch = weakref.ref(owner)
    owner.tensor = torch.from_dlpack(owner)
    del owner
    gc.collect()
    kept = watch()
    assert kept is not None
    kept.tensor = None
    del kept
    assert watch() is None


@pytest.mark.parametrize("lend", ["from_dlpack", "to_numpy"])
def test_a_torch_tensor_that_refers_to_a_tensor_over_it_is_collected(
    lend: str, framework: Any
) -> None:
    """dlbridge holds the memory of a torch tensor, not the tensor."""
    torch = framework("torch")
    before = native.live()
    owner = torch.zeros(8)
    watch = weakref.ref(owner)
    owner.tensor = getattr(dlbridge, lend)(owner)
    del owner
    gc.collect()
    assert watch() is None
    assert native.live() == before


def test_weak_references_to_a_tensor_die_with_it() -> None:
    tensor = dlbridge.from_dlpack(vector())
    seen: list[str] = []
    watch = weakref.ref(tensor, lambda _: seen.append("gone"))
    assert watch() is tensor
    del tensor
    assert seen == ["gone"]
    assert watch() is None


def test_an_error_keeps_no_tensor_once_it_is_handled() -> None:
    array = vector()
    array.flags.writeable = False
    references = sys.getrefcount(array)
    reasons = []
    try:
        dlbridge.from_dlpack(array).__dlpack__()
    except ExchangeError as error:
        reasons.append(error.reason)
    assert reasons == ["readonly"]
    assert sys.getrefcount(array) == references


# ---- the end of the interpreter ------------------------------------------------------------------

SETUP = """
import sys, threading, time
import numpy as np
import dlbridge
from dlbridge._core import native
from dlpack_peers import *
from measuring import pause, until
peer = NativePeer(sys.argv[1])
data = np.arange(64, dtype=np.float32)
data_of_c = describe(data)

def make(kind):
    if kind == "allocator":
        return dlbridge.zeros((8,), "float32")
    if kind == "object":
        return dlbridge.from_dlpack(np.arange(8, dtype=np.float32))
    return native.take_capsule(peer.disposable(data_of_c))

KINDS = ("allocator", "object", "managed")
def consumers(count, versioned=True):
    return [Consumer(exported(make(KINDS[i % 3]), versioned)) for i in range(count)]
"""


def at_the_end(run_python: Any, peer: NativePeer, code: str) -> str:
    """Run the code in a process of its own, which must end well and say nothing on stderr."""
    run = run_python(SETUP + code, peer.path)
    assert run.stderr == ""
    return str(run.check())


@pytest.mark.subprocess
def test_live_tensors_and_exports_do_not_disturb_the_exit(
    run_python: Any, native_peer: NativePeer
) -> None:
    """Globals, cycles, views and module attributes all die in an order of their own."""
    at_the_end(
        run_python,
        native_peer,
        """
tensors = [make(kind) for kind in KINDS]
capsules = [exported(make(kind), v) for kind in KINDS for v in (False, True)]
held = consumers(6)
arrays = [dlbridge.to_numpy(make(kind)) for kind in KINDS]
views = [memoryview(make(kind)) for kind in KINDS]
class Cycle: pass
cycle = Cycle(); cycle.itself = cycle; cycle.tensor = make("managed")
sys.hidden = make("object")
""",
    )


@pytest.mark.fast(lambda versioned: versioned)
@pytest.mark.subprocess
@pytest.mark.parametrize("at_exit", [False, True], ids=["Py_AtExit", "atexit"])
@VERSIONS
def test_our_deleters_may_be_called_when_python_is_gone(
    run_python: Any, native_peer: NativePeer, versioned: bool, at_exit: bool
) -> None:
    """An array that survives in a C++ static is released after Py_Finalize: leak, do not crash."""
    out = at_the_end(
        run_python,
        native_peer,
        f"""
held = consumers(30, {versioned})
peer.delete_after_python(held, at_exit={at_exit})
""",
    )
    assert "deleters ran at exit" in out


@pytest.mark.fast(lambda pause: pause == 20)
@pytest.mark.subprocess
@pytest.mark.parametrize("pause", [0, 20, 500])
def test_a_foreign_thread_may_delete_while_the_interpreter_shuts_down(
    run_python: Any, native_peer: NativePeer, pause: int
) -> None:
    """It must neither crash nor keep the process from ending."""
    at_the_end(
        run_python,
        native_peer,
        f"""
held = consumers(3000)
peer.delete_in_background(held, pause={pause})
pause(0.005)
""",
    )


@pytest.mark.subprocess
def test_a_daemon_thread_may_exchange_while_the_interpreter_shuts_down(
    run_python: Any, native_peer: NativePeer
) -> None:
    at_the_end(
        run_python,
        native_peer,
        """
begun = []
def work():
    while True:
        for kind in KINDS:
            Consumer(make(kind).__dlpack__()).release()
        begun.append(threading.get_ident())
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
until(lambda: len(set(begun)) == 4)
""",
    )


@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["numpy", "torch", "jax", "tensorflow", "tvm", "mlx", "pyarrow", "paddle"]
)
def test_a_framework_that_holds_our_memory_at_exit_does_no_harm(
    run_python: Any, native_peer: NativePeer, framework: Any, name: str
) -> None:
    """Their arrays die late, some after the interpreter; ours is then the deleter they call."""
    framework(adapter(name).module)
    run = run_python(
        SETUP
        + f"""
kept = [dlbridge.convert(make(kind), "{name}") for kind in KINDS]
sys.kept = kept[0]
back = [dlbridge.from_dlpack(x) for x in kept]
print("done")
""",
        native_peer.path,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert "done" in run.check()


@pytest.mark.subprocess
def test_a_fork_inherits_tensors_that_work(run_python: Any, native_peer: NativePeer) -> None:
    """A data loader's worker: counts and memory are its own copy, exit included."""
    at_the_end(
        run_python,
        native_peer,
        """
import os
tensors = [make(kind) for kind in KINDS]
child = os.fork()
if child == 0:
    assert native.live()["tensors"] == 3
    values = [np.asarray(t).sum() for t in tensors]
    del tensors
    assert native.live()["tensors"] == 0
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    )


INTERPRETERS = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

def run(text):
    child = interpreters.create()
    try:
        error = interpreters.run_string(child, text)
    except interpreters.RunFailedError as found:
        error = found
    print(error)

IMPORT = "import sys; sys.path[:] = " + repr(sys.path) + "; import dlbridge"
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("first", ["", "import dlbridge"])
def test_subinterpreters_are_refused_cleanly(run_python: Any, first: str) -> None:
    """Whether or not the main interpreter has it; that one goes on, and the process ends."""
    done = run_python(
        f"import sys\n{first}\n{INTERPRETERS}"
        """
run(IMPORT.replace("import dlbridge", "sys.modules['numpy'] = None; import dlbridge"))
run(IMPORT.replace("import dlbridge", "import dlbridge._core"))
import dlbridge
assert dlbridge.arange(3).tolist() == [0, 1, 2]
""",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "does not support subinterpreters" in line]
    assert len(said) == 2, done.stdout
    assert all("use processes" in line for line in said), done.stdout
    assert "NumPy" not in done.stderr


@pytest.mark.subprocess
def test_a_big_endian_processor_is_refused_at_import(run_python: Any) -> None:
    done = run_python("import numpy, sys; sys.byteorder = 'big'; import dlbridge")
    assert done.returncode == 1
    assert "ImportError: dlbridge needs a little-endian processor" in done.stderr


SLOW = """
import sys, threading
from measuring import until
from dlbridge import registry
from dlbridge.exchange.adapter import Framework

class Slow(Framework):
    name = "slow"
    module = "math"

    def give(self, tensor, policy, context):
        return tensor.tolist()

print("importing", flush=True)

def is_forking():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code is not registry._before_fork.__code__:
        frame = frame.f_back
    return frame

until(is_forking, "a fork, which waits for this import")
ADAPTER = Slow()
"""


@pytest.mark.subprocess
def test_a_fork_waits_for_the_imports_of_a_first_exchange(run_python: Any, tmp_path: Path) -> None:
    """Otherwise the child inherits the lock of a module that nobody releases, and hangs."""
    (tmp_path / "slow.py").write_text(SLOW)
    done = run_python(
        f"""
import os, sys, threading
sys.path.insert(0, {str(tmp_path)!r})
import faulthandler
from measuring import until
import dlbridge
from dlbridge import registry

dlbridge.register_framework("slow", "slow", ("slow",))
first = threading.Thread(target=dlbridge.convert, args=(dlbridge.arange(3), "slow"))
first.start()
until(lambda: "slow" in sys.modules)
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(20, exit=True)
    assert dlbridge.convert(dlbridge.arange(3), "slow") == [0, 1, 2]
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
first.join()
assert not registry._LOADING
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["importing"]


@pytest.mark.subprocess
def test_a_fork_inside_of_an_import_waits_for_nobody(run_python: Any, tmp_path: Path) -> None:
    """A thread may load what needs the module that is being imported here."""
    (tmp_path / "forks.py").write_text(
        """
import os, threading
from measuring import until
from dlbridge import registry

registry._LONGEST = 3600.0  # a fork that waits would still do so when this process is ended
thread = threading.Thread(target=registry.load, args=(__import__, "forks"))
thread.start()
until(lambda: registry._LOADING)
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    done = run_python(
        f"""
import sys, threading
sys.path.insert(0, {str(tmp_path)!r})
import dlbridge, forks
forks.thread.join()
"""
    )
    assert done.returncode == 0, done.stderr


FIRST_USES = {
    "kernel": """
import torch
import dlbridge

kernel = dlbridge.wrap(
    lambda x: 2 * x, "owner::double(x: f64[n]) -> f64[n]", abi="python:numpy"
)

x = torch.ones(3, dtype=torch.float64)
x.tolist()  # torch's own first use is not what is forked here

def use():
    assert kernel(x).tolist() == [2, 2, 2]
""",
    "graph": """
import dlbridge.graph as tf

with tf.Graph().as_default() as graph:
    x = tf.placeholder(tf.float64, [3])
    y = tf.reduce_sum(x * 2.0)

def use():
    with tf.Session(graph=graph) as session:
        assert session.run(y, {x: [1, 2, 3]}) == 12
""",
    "GraphDef": """
import dlbridge.graph as tf

def use():
    with tf.Graph().as_default() as graph:
        tf.constant(1.0)
    assert len(graph.as_graph_def().node) == 1
""",
}


@pytest.mark.fast(lambda first: first == "kernel")
@pytest.mark.subprocess
@pytest.mark.parametrize("first", FIRST_USES)
def test_a_fork_during_a_first_use_in_another_thread_harms_nobody(
    run_python: Any, first: str
) -> None:
    """Locks and imports of that thread are nothing that the child could wait for."""
    if first == "kernel":
        pytest.importorskip("torch")
    else:
        pytest.importorskip("google.protobuf")
    done = run_python(
        f"""
import faulthandler, os, sys, threading
from importlib.machinery import PathFinder
from measuring import pause

class Slowly(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.startswith(("dlbridge", "google")):
            pause(0.02)
        return None
{FIRST_USES[first]}
sys.meta_path.insert(0, Slowly)
thread = threading.Thread(target=use)
thread.start()
children = []
while thread.is_alive() and len(children) < 20:
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        use()
        os._exit(0)
    children.append(child)
    pause(0.02)
codes = [os.waitpid(child, 0)[1] for child in children]
thread.join()
assert children and not any(codes), codes
"""
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_process_has_no_lock_of_a_thread_that_it_lacks() -> None:
    lock, own = registry.lock(), registry.lock()
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_over.wait()

    with own:
        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if own._is_owned() and lock.acquire(timeout=5) else 1)
        is_over.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        assert own._is_owned()


def test_all_locks_are_made_where_forks_are_known() -> None:
    made = re.compile(r"\bR?Lock\(\)")
    package = Path(dlbridge.__file__).parent
    found = [path for path in package.rglob("*.py") if made.search(path.read_text("utf-8"))]
    assert found == [package / "registry.py"]


def test_all_locks_of_the_core_are_made_where_forks_are_known() -> None:
    """With static storage; those of the CUDA devices are not reached without a driver, and a
    forked child has none."""
    core = Path(dlbridge.__file__).parent / "_core"
    if not (core / "module.c").exists():
        pytest.skip("the core's C files are not beside the package")
    made = re.compile(r"PTHREAD_(?:MUTEX|RWLOCK|ONCE|COND)_INIT")
    found = {
        str(path.relative_to(core)): len(made.findall(path.read_text("utf-8")))
        for path in core.rglob("*.[ch]")
        if made.search(path.read_text("utf-8"))
    }
    assert found == {"memory/lock.h": 1, "cuda/driver.c": 1}


def test_read_only_exports_are_released_like_any_other(native_peer: NativePeer) -> None:
    tensor = dlbridge.from_dlpack(ModernProducer(describe(vector(), flags=READ_ONLY)))
    consumer = Consumer(tensor.__dlpack__(max_version=(1, 0)))
    native_peer.delete_on_threads([consumer])
    assert tensor.buffer.refcount == 1
