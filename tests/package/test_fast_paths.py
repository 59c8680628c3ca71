"""The fast path that should be active is: what is made to stay in C enters no Python of ours.

A fast path that is switched off by a mistake gives the same results, only later. So each call of
the table is made under a profiler, which must see no function of dlbridge: how long it takes says
nothing. Where a version of a framework is served in another way, the table says so.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dlbridge
from dlbridge import cli, frameworks
from dlbridge import graph as tf
from dlbridge._core import native
from dlbridge.dtype import NAMES
from dlbridge.exchange import adapter, protocol

PACKAGE = str(Path(dlbridge.__file__).parent)
SOURCE = r"""
#include "dlbridge_kernel.h"

int increase(void *context, DLTensor *tensors, int count) {
    const float *x = tensors[0].data;
    float *y = tensors[count - 1].data;
    for (int64_t i = 0; i < tensors[0].shape[0]; i++)
        y[i] = x[i] + 1;
    return 0;
}

int negate(void *context, DLTensor *tensors, int count) {
    float *x = tensors[0].data;
    for (int64_t i = 0; i < tensors[0].shape[0]; i++)
        x[i] = -x[i];
    return 0;
}
"""
SIZE = 16  # elements; 64 bytes: neither so small nor so large that another way is chosen


class Sample(NamedTuple):
    """The samples of a framework: an array of it, and functions that have been made for it."""

    array: Any
    convert: Callable[[Any], Any]  # to_<name>
    kernel: Any  # with a schema
    plain: Any  # without one; it writes its argument
    direct: Callable[[Any], Any]  # kernel.<name>


# The samples, by name.
CALLS: dict[str, Callable[[Sample], Any]] = {
    "from_dlpack": lambda its: dlbridge.from_dlpack(its.array),
    "to_numpy": lambda its: dlbridge.to_numpy(its.array),
    "convert": lambda its: dlbridge.convert(its.array, "numpy"),
    "to": lambda its: its.convert(aligned()),
    "to of itself": lambda its: its.convert(its.array),
    "kernel": lambda its: its.kernel(its.array),
    "kernel of the framework": lambda its: its.direct(its.array),
    "kernel without a schema": lambda its: its.plain(its.array),
}
IN = ("from_dlpack", "to_numpy", "convert")
CALLED = ("kernel", "kernel of the framework")

# framework -> the calls that stay in C
FAST: dict[str, tuple[str, ...]] = {
    "numpy": (*IN, "to", "to of itself", *CALLED, "kernel without a schema"),
    "torch": (*IN, "to", "to of itself", *CALLED, "kernel without a schema"),
    "jax": (*IN, "to", "to of itself", *CALLED),
    "tensorflow": (*IN, "to", "to of itself"),
    "tvm": (*IN, "to", "to of itself"),
    "mlx": (*IN, "to", "to of itself"),
    "pyarrow": (*IN, "to", "to of itself"),
    "onnxruntime": ("to", "to of itself"),
}
ROWS = [(name, call) for name, calls in FAST.items() for call in calls]


def why_general(name: str, call: str, module: Any) -> str | None:
    """Return why the installed version of a framework is served through Python, where it is."""
    if name == "torch":
        path = adapter.adapter(name).path()
        return None if path == "direct" else path
    if name == "jax" and call not in CALLED and module.__version_info__ < (0, 6):
        return "before 0.6 jaxlib had its functions in another place"
    return None


MAKERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda numpy: numpy.ones(SIZE, numpy.float32),
    "torch": lambda torch: torch.ones(SIZE),
    "jax": lambda jax: jax.numpy.ones(SIZE),
    "tensorflow": lambda tf: tf.ones(SIZE),
    "tvm": lambda _: dlbridge.to_tvm(aligned()),
    "mlx": lambda mlx: mlx.ones(SIZE),
    "pyarrow": lambda pyarrow: pyarrow.Tensor.from_numpy(numpy_array()),
    "onnxruntime": lambda ort: ort.OrtValue.from_dlpack(aligned()),
    "paddle": lambda paddle: paddle.ones([SIZE]),
}


def numpy_array() -> Any:
    """Return an ordinary array."""
    return np.ones(SIZE, np.float32)


def aligned() -> Any:
    """Return a Tensor that every framework can share."""
    return native.allocate((SIZE,), (2, 32, 1))


@pytest.fixture(scope="module")
def compiled() -> tuple[Any, Any]:
    """Return a kernel with a schema, and one without."""
    schema = "fast_paths::increase(x: f32[n]) -> f32[n]"
    return (
        dlbridge.compile_c(SOURCE, "increase", schema),
        dlbridge.compile_c(SOURCE, "negate"),
    )


@pytest.fixture
def sample_of(framework: Any, compiled: tuple[Any, Any]) -> Callable[[str], Sample]:
    """Return a function that makes the sample of a framework."""

    def make(name: str) -> Sample:
        module = framework(adapter.adapter(name).module)
        kernel, plain = compiled
        convert = getattr(dlbridge, f"to_{name}")
        return Sample(MAKERS[name](module), convert, kernel, plain, getattr(kernel, name))

    return make


def functions_entered(call: Callable[[], Any]) -> list[str]:
    """Return the functions of dlbridge that a call enters, once it is warm."""
    for _ in range(3):
        call()
    entered: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE):
            entered.append(f"{file.removeprefix(PACKAGE)}: {frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


# ---- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "call"), ROWS)
def test_the_call_stays_in_c(name: str, call: str, sample_of: Callable[[str], Sample]) -> None:
    sample = sample_of(name)
    reason = why_general(name, call, sys.modules[adapter.adapter(name).module])
    if reason is not None:
        pytest.skip(reason)
    entered = functions_entered(lambda: CALLS[call](sample))
    assert not entered, f"{call} of {name} left C: {entered[:5]}"


# Calls that are none of a framework, by name.
OTHERS: dict[str, Callable[[], Any]] = {
    "an index": lambda: aligned()[1:3],
    "an index of several": lambda: aligned()[None, ..., ::-2],
    "reshape": lambda: aligned().reshape(4, -1),
    "a memoryview": lambda: dlbridge.to_numpy(memoryview(numpy_array())),
    "bytes": lambda: dlbridge.from_dlpack(b"0123"),
    "zeros": lambda: dlbridge.zeros((2, 3), dtype="float32"),
    "ones": lambda: dlbridge.ones((2, 3), "int8", device="cpu"),
    "full": lambda: dlbridge.full((2, 3), 1.5, "float32"),
    "full without a dtype": lambda: dlbridge.full(3, 2),
    "equal": lambda: dlbridge.equal(aligned(), numpy_array()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_call_stays_in_c(name: str) -> None:
    entered = functions_entered(OTHERS[name])
    assert not entered, f"{name} left C: {entered[:5]}"


class Exporter:
    """A class of a user, which has what the standard asks for and no more."""

    def __init__(self) -> None:
        self.array = numpy_array()
        self.tensor = dlbridge.from_dlpack(self.array)  # NumPy 1 knows no max_version

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        return self.tensor.__dlpack__(max_version=max_version)


class OldExporter(Exporter):
    """The same before DLPack 1.0."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.tensor.__dlpack__()


@pytest.mark.parametrize("make", [Exporter, OldExporter])
@pytest.mark.parametrize("name", ["from_dlpack", "to_numpy", "to_torch", "to_jax"])
def test_the_standard_itself_stays_in_c(name: str, make: Any, framework: Any) -> None:
    reason = why_general(name[3:], "to", framework(name[3:])) if name.startswith("to_") else None
    if reason is not None:
        pytest.skip(reason)
    call, x = getattr(dlbridge, name), make()
    entered = functions_entered(lambda: call(x))
    assert not entered, f"{name} left C: {entered[:5]}"
    result = dlbridge.to_numpy(x)
    assert result.ctypes.data == x.array.ctypes.data


@pytest.mark.parametrize("call", [dlbridge.to_numpy, dlbridge.to_jax])
def test_a_tensor_is_detached_in_c(call: Any, framework: Any) -> None:
    torch = framework("torch")
    reason = why_general("torch", "to", torch)
    if reason is not None:
        pytest.skip(reason)
    framework(call.__name__[3:])
    x = torch.ones(SIZE, requires_grad=True)
    entered = functions_entered(lambda: call(x, grad="detach"))
    assert not entered, f"it left C: {entered[:5]}"
    with pytest.raises(dlbridge.ExchangeError, match="requires a gradient"):
        call(x)


def test_a_log_of_another_thread_lets_calls_stay_in_c() -> None:
    opened, done = threading.Event(), threading.Event()

    def record() -> None:
        with dlbridge.receipts():
            opened.set()
            assert done.wait(60)

    x = numpy_array()
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(record)
        assert opened.wait(60)
        entered = functions_entered(lambda: dlbridge.from_dlpack(x))
        done.set()
        recording.result()
    assert not entered, f"it left C: {entered[:5]}"


def test_new_memory_stays_in_c_after_many_dtypes() -> None:
    """Without a GIL what is known of a dtype is never replaced, and must leave room for others."""
    for number in range(1024):
        dlbridge.zeros(1, "".join(["float3", f"2x{number % 32 + 2}"]))  # a new object each time
    for name in map(sys.intern, NAMES.values()):
        entered = functions_entered(lambda name=name: dlbridge.zeros(1, name))
        assert not entered, f"zeros of {name} left C: {entered[:5]}"


def test_types_whose_addresses_are_alike_stay_in_c() -> None:
    """They are found by bits of their addresses, and do not drive each other out."""
    alike: dict[int, list[type]] = {}
    found: list[type] = []
    while len(found) < 3:
        made = type("Exporter", (Exporter,), {})
        found = alike.setdefault(id(made) >> 4 & 127, [])
        found.append(made)
    values = [each() for each in found]
    entered = functions_entered(lambda: [dlbridge.from_dlpack(x) for x in values])
    assert not entered, f"they left C: {entered[:5]}"


def test_an_array_of_arrow_stays_in_c() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    array = pyarrow.array(numpy_array())
    entered = functions_entered(lambda: dlbridge.to_numpy(array))
    assert not entered, f"it left C: {entered[:5]}"


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_the_leaves_of_a_tree_stay_in_c(name: str, framework: Callable[[str], Any]) -> None:
    """However many there are, a tree of plain containers enters the same functions."""
    reason = why_general(name, "to", framework(name))
    if reason is not None:
        pytest.skip(reason)
    small, large = ({"a": [aligned(), (aligned(),)] * count} for count in (1, 20))
    calls = [functions_entered(lambda t=t: dlbridge.convert_tree(t, name)) for t in (small, large)]
    assert len(calls[0]) == len(calls[1]), f"leaves left C: {calls[1][-5:]}"


def test_the_profiler_sees_what_leaves_c() -> None:
    assert functions_entered(lambda: aligned().squeeze())


# Tensors that come through Python take this route in, and this one out.
ROUTES = {
    "jax": ("numpy.asarray", "jaxlib capsule"),
    "paddle": ("Paddle C exchange table", "Paddle C exchange table"),
    "torch": ("torch storage", "torch C exchange table"),
}


@pytest.mark.parametrize("name", ROUTES)
def test_python_takes_the_best_route(name: str, sample_of: Callable[[str], Sample]) -> None:
    sample = sample_of(name)
    reason = why_general(name, "to", sys.modules[adapter.adapter(name).module])
    if reason is not None:
        pytest.skip(reason)
    with dlbridge.receipts() as log:
        dlbridge.from_dlpack(sample.array)
        sample.convert(aligned())
    found = tuple(receipt.route.removeprefix("Tensor -> ") for receipt in log)
    into, out = ROUTES[name]
    if name == "torch" and not hasattr(sys.modules["torch"].Tensor, protocol.TABLE):
        out = "torch.from_dlpack"  # before 2.10
    assert found == (into, out)


def test_every_way_that_a_framework_names_is_tried() -> None:
    """A row of the table of frameworks that speaks of C belongs into one of the tables above."""
    known = (adapter.adapter(name) for name in frameworks.names())
    named = {each.name for each in known if "C " in each.way_in}
    assert named <= FAST.keys() | ROUTES.keys()


# ---- what the calls rest on ----------------------------------------------------------------------


def test_torch_lends_and_allocates_without_its_dispatcher(framework: Any) -> None:
    """Of a proved version; on any other the path says why not, and C reads no memory."""
    torch = framework("torch")
    from dlbridge.frameworks.torch import internals, proofs

    x = torch.ones(SIZE)
    path = internals.path()
    if proofs.proof() is None:
        assert path.startswith("general: ")
        assert native.torch_allocate((2, 3), (2, 32, 1)) is None
        return
    assert path == "direct"
    assert internals.guard_is_open()
    is_old = proofs.release().startswith("2.6.")  # operators by C functions came with 2.7
    assert is_old or internals.shim_lacks() is None
    assert native.torch_guard_allows(x)
    assert native.torch_direct_allows(x)
    assert native.torch_borrow(x) == (x.data_ptr(), (SIZE,), (1,), (2, 32, 1), (1, 0))
    for dtype in internals.dtypes(torch):
        triple = dlbridge.DType(dtype).triple
        made = native.torch_allocate((2, 3), triple)
        assert made is not None, f"torch.empty would be asked for {dtype}"
        assert made.dtype == dtype


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_exchange_tables_serve(name: str, framework: Any) -> None:
    """A framework that says that it has a table has one, and ours reads and writes through it."""
    module = framework(name)
    kind = type(MAKERS[name](module))
    if not hasattr(kind, protocol.TABLE):
        pytest.skip(f"{name} {module.__version__} has no exchange table")
    table = getattr(kind, protocol.TABLE)
    taken = native.take_table(MAKERS[name](module), table)
    assert taken.shape == (SIZE,)
    assert type(native.give_table(taken, table)) is kind


def test_the_torch_of_the_tests_is_one_of_those_proved() -> None:
    """With another one all of the above would be skipped, as the general path is right there."""
    from dlbridge.frameworks.torch import proofs

    makefile = Path(__file__).resolve().parents[2] / "Makefile"
    pinned = re.search(r"^TORCH := torch==(\S+)$", makefile.read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] in proofs.PROVED


def test_our_own_tensor_offers_an_exchange_table() -> None:
    table = getattr(dlbridge.Tensor, protocol.TABLE)
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    assert name(table) == b"dlpack_exchange_api"
    x = dlbridge.from_dlpack(np.ones(SIZE, np.float32))
    assert native.take_table(x, table).data_ptr == x.data_ptr


def test_numpy_is_read_through_its_c_table() -> None:
    """Through `__dlpack__` the owner would be a capsule's, not the array itself."""
    array = np.ones(SIZE, np.float32)
    taken = native.take(array)
    assert taken is not None
    assert taken.buffer.owner is array
    given = native.give_numpy(aligned())
    assert type(given) is np.ndarray


def test_runs_of_small_torch_tensors_stay_in_c(framework: Any) -> None:
    """In the loops of NumPy, of a proved version."""
    torch = framework("torch")
    import dlbridge.graph as tf
    from dlbridge.execution.backend import backend
    from dlbridge.frameworks.torch import proofs

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None])
        total = (x + 1.0) * 2.0
        session = tf.Session(framework="torch")
    trace = tf.Trace()
    session.run(total, {x: np.ones(SIZE)}, trace=trace)
    loops = [event["args"]["loops"] for event in trace.events if "loops" in event["args"]]
    assert loops == ([] if proofs.proof() is None else [True])
    add = ((np.add, (0, 1)),)
    kind = np.dtype("f4")
    run = native.Loops((kind, kind), add, (2,), single=True, small_torch=backend("torch").small)
    y = torch.ones(SIZE)
    assert run.takes(y, y) == (proofs.proof() is not None)
    assert not functions_entered(lambda: run(y, y))


# ---- compiled programs ---------------------------------------------------------------------------


@pytest.fixture
def pure(compiled: tuple[Any, Any]) -> Any:
    return compiled[0]


def test_programs_of_jax_call_kernels_without_python(framework: Any, pure: Any) -> None:
    jax = framework("jax")
    x = jax.numpy.ones(SIZE)
    program = jax.jit(lambda x: pure.jax(pure.jax(x)) * 2)
    assert not functions_entered(lambda: program(x).block_until_ready())
    assert program(x)[0] == 6


def test_programs_of_tensorflow_call_kernels_without_python(framework: Any, pure: Any) -> None:
    tf = framework("tensorflow")
    x = tf.ones(SIZE)
    program = tf.function(lambda x: pure.tensorflow(pure.tensorflow(x)) * 2, autograph=False)
    assert not functions_entered(lambda: program(x))
    operations = program.get_concrete_function(x).graph.get_operations()
    assert [node.type for node in operations].count("DlbridgeCall") == 2
    assert program(x)[0] == 6


def test_operators_of_torch_call_kernels_without_python(framework: Any, pure: Any) -> None:
    """As loaders in C++ and compiled programs call them."""
    torch = framework("torch")
    from dlbridge.frameworks.torch import internals

    if internals.shim_lacks() is not None:
        pytest.skip(f"this torch is served in general: {internals.shim_lacks()}")
    assert pure.torch(torch.ones(SIZE))[0] == 2  # which registers the operator
    operator = torch.ops.fast_paths.increase.default
    with torch.inference_mode():  # where no derivative is asked for
        x = torch.ones(SIZE)
        assert not functions_entered(lambda: operator(x))


# ---- runs of a graph -----------------------------------------------------------------------------


def test_runs_make_their_plans_once() -> None:
    """Of a single tensor without feeds the call itself is kept; of all others the plan."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [2])
        doubled = tf.constant([1.0, 2.0]) * 2.0
        total = x + doubled
    fed = np.ones(2, np.float32)
    with tf.Session(graph=graph) as session:
        plain = functions_entered(lambda: session.run(doubled))
        others = [
            functions_entered(lambda: session.run(total, {x: fed})),
            functions_entered(lambda: session.run([doubled, doubled])),
        ]
        assert session.run(total, {x: fed}).tolist() == [3, 5]
    finds, makes = "BaseSession._runner", "Runner.__init__"
    assert not any(entered.endswith(finds) for entered in plain)
    for run in others:
        assert any(entered.endswith(finds) for entered in run)
        assert not any(entered.endswith(makes) for entered in run)


# ---- what is printed -----------------------------------------------------------------------------


@pytest.fixture
def paths() -> dict[str, str]:
    return {name: cli.find_path(name) for name in frameworks.names()}


def test_the_table_of_frameworks_shows_the_paths(paths: dict[str, str], framework: Any) -> None:
    framework("torch")
    from dlbridge.frameworks.torch import proofs

    expected = "direct" if proofs.proof() is not None else "general: "
    assert paths["torch"].startswith(expected)
    assert paths["numpy"] == ""  # there is only one
