"""What the handler of a signal raises ends the call, wherever it comes, and is nobody's refusal."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import signal
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge.exchange.adapter import adapter
from dlbridge.graph.core.scopes import GRAPHS, SESSIONS
from dlbridge.kernels.kinds import read_signature
from dlbridge.proto import GraphDef
from dlbridge.signals import is_from_handler, not_from_handler

PACKAGE = Path(dlbridge.__file__).parent


@pytest.fixture(autouse=True)
def numpys_errors_are_as_before() -> Iterator[None]:
    """An exception in the first or last step of `with np.errstate(...)` leaves the state in it.

    NumPy 2 has the state in a variable of contexts, of which each interrupted call has its own.
    """
    before = np.geterr()
    yield
    if np.geterr() != before:
        np.seterr(**before)


class Timeout(Exception):
    """Somebody's own, which no code of the package can name."""


class Handlers:
    """The forms that a handler may have."""

    def method(self, _number: int, _frame: object) -> None:
        raise Timeout

    def __call__(self, number: int, frame: object) -> None:
        raise Timeout

    @classmethod
    def of_class(cls, number: int, frame: object) -> None:
        raise Timeout


def plain(number: int, frame: object) -> None:
    raise Timeout


def with_any_arguments(*_: object) -> None:
    raise Timeout


def with_more(seconds: int, number: int, frame: object, **_: object) -> None:
    raise Timeout(seconds)


def deletes_its_arguments(number: int, frame: object) -> None:
    del number, frame
    raise Timeout


def calls_another(number: int, frame: object) -> None:
    plain(0, None)


def closes_over(number: int, frame: object) -> None:
    def fail() -> None:
        raise Timeout(number, frame)

    fail()


HANDLERS: dict[str, Callable[..., None]] = {
    "function": plain,
    "any arguments": with_any_arguments,
    "partial": partial(with_more, 3),
    "partial of a method": partial(Handlers().method),
    "method": Handlers().method,
    "method of the class": Handlers.of_class,
    "object": Handlers(),
    "lambda": lambda *given: plain(*given),
    "without its arguments": deletes_its_arguments,
    "helper": calls_another,
    "closure": closes_over,
}


@pytest.fixture(autouse=True)
def _usual_handler() -> Iterator[None]:
    usual = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, usual)


@pytest.mark.parametrize("form", HANDLERS)
def test_an_exception_of_a_handler_is_recognised(form: str) -> None:
    signal.signal(signal.SIGUSR1, HANDLERS[form])
    with pytest.raises(Timeout) as caught:
        signal.raise_signal(signal.SIGUSR1)
    assert is_from_handler(caught.value)


def test_a_handler_that_was_replaced_before_it_raised_is_recognised() -> None:
    def once(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Timeout

    signal.signal(signal.SIGUSR1, once)
    with pytest.raises(Timeout) as caught:
        signal.raise_signal(signal.SIGUSR1)
    assert is_from_handler(caught.value)


def test_an_except_clause_catches_what_no_handler_has_raised() -> None:
    def caught(act: Callable[[], object]) -> str:
        try:
            act()
        except not_from_handler(KeyError, ValueError) as error:
            return type(error).__name__
        except Exception as error:
            return f"not {type(error).__name__}"
        return "nothing"

    signal.signal(signal.SIGUSR1, raises_a_narrow_one)
    assert caught(lambda: int("x")) == "ValueError"
    assert caught(lambda: {}[1]) == "KeyError"
    assert caught(lambda: int(())) == "not TypeError"  # type: ignore[call-overload]
    assert caught(partial(signal.raise_signal, signal.SIGUSR1)) == "not NarrowTimeout"


def test_other_exceptions_are_not_a_handlers() -> None:
    def likely(number: int, frame: object) -> None:
        raise Timeout

    signal.signal(signal.SIGUSR1, HANDLERS["function"])
    for arguments in ((1, None), (1, sys._getframe(1)), (1, 2)):
        with pytest.raises(Timeout) as caught:
            likely(*arguments)
        assert not is_from_handler(caught.value)
    assert not is_from_handler(Timeout())


# ---- at each bytecode --------------------------------------------------------------------------


class Producer:
    """Written in Python, as many are."""

    def __init__(self) -> None:
        self.x = np.arange(3.0)

    def __dlpack__(self, **keywords: Any) -> object:
        return self.x.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.x.__dlpack_device__()
        return kind, index


class Described:
    """With an array interface."""

    def __init__(self, typestr: str = "<f8") -> None:
        self.x = np.arange(3).astype(typestr)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        found = self.x.__array_interface__
        return dict(found)


def new(kind: type) -> Any:
    """Return an object of a class that was never seen, so that it is classified again."""
    return type(kind.__name__, (kind,), {})()


def graph_bytes() -> bytes:
    with tf.Graph().as_default() as graph:
        tf.add(tf.constant([1.0]), tf.placeholder(tf.float32, [1], name="x"), name="y")
    return tf.dump_graph(graph)


GRAPH = graph_bytes()


def run_graph() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [1])
        y = tf.square(x) + 1.0
        with tf.Session(graph=graph) as session:
            session.run(y, {x: np.ones(1, np.float32)})


@dataclass
class Sample:
    """A container of users."""

    x: object
    count: int


class Annotated(dict[str, object]):
    """A container of users, with attributes beside its items."""


def convert_containers() -> None:
    x = np.arange(3.0)
    kept = Annotated(x=x)
    vars(kept)["mask"] = x
    ordered: OrderedDict[str, object] = OrderedDict(x=x)
    dlbridge.convert_tree([Sample(x, 1), kept, ordered, deque([x]), {(1, 2): (x, {1})}], "numpy")


def parse_schemas() -> None:
    dlbridge.Schema.parse("jobs::one(x: f32[n, 2 * m + 1], y!: f32[...]? = None, *, s: float = 1)")
    for text in ("jobs::two(x: f32[(n)", "jobs::two(x: f32[n], *, s: str = '\\x') -> f32[n]"):
        with pytest.raises(dlbridge.ArgumentError):
            dlbridge.Schema.parse(text)


def load_text() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "graph.pbtxt")
        path.write_text(str(GraphDef.FromString(GRAPH)))
        tf.load_graph(path)


def import_graph() -> None:
    with tf.Graph().as_default():
        tf.import_graph_def(GraphDef.FromString(GRAPH), name="imported")


def run_user_code() -> None:
    with tf.Graph().as_default() as graph:
        y = tf.py_func(lambda x: x + 1, [tf.constant([1.0])], tf.float32)
        with tf.Session(graph=graph) as session:
            session.run({"y": [y]})


_NUMBERS = count()


def declare_op() -> None:
    text = '(x: T, *, n: int >= 1 = 2, s: string = "a", T: {float32, int8}) -> y: n * T'
    tf.register_op(f"Interrupted{next(_NUMBERS)}{text}")


def wrap_function() -> None:
    dlbridge.wrap(lambda x, s: x * s, f"jobs::scaled{SCALED}", abi="python:numpy")


SCALED = "(x: f32[n], *, s: float = 1.0) -> f32[n]"
KERNEL = dlbridge.wrap(lambda x, s: x * s, f"jobs::kernel{SCALED}", abi="python:numpy")


def look_for_kernels() -> None:
    with pytest.raises(dlbridge.ArgumentError):
        dlbridge.load_package("pytest")


@cache
def _framework(name: str) -> Any:
    return pytest.importorskip(name)


def go_to_torch() -> None:
    torch = _framework("torch")
    x = torch.ones(3)
    dlbridge.convert_tree([x, np.arange(3.0)[::-1]], "torch")
    dlbridge.to_numpy(x, dtype="float64")
    dlbridge.inspect(x)


def differentiate_in_torch() -> None:
    torch = _framework("torch")
    x = torch.ones(3, requires_grad=True)
    _differentiable()(x, s=2).sum().backward()
    torch.func.grad(lambda x: _differentiable()(x).sum())(torch.ones(3))


@cache
def _differentiable() -> Any:
    text = f"jobs::differentiable{SCALED}"
    return dlbridge.wrap(lambda x, s: x * s, text, abi="python:numpy", vjp=lambda grad, s: grad * s)


def go_to_jax() -> None:
    x = _framework("jax").numpy.ones(3)
    dlbridge.to_jax(np.arange(3.0, dtype=np.float32)[::-1])
    dlbridge.to_numpy(x, dtype="float64")
    dlbridge.inspect(x)


def differentiate_in_jax() -> None:
    jax = _framework("jax")
    jax.grad(lambda x: _differentiable()(x, s=2).sum())(jax.numpy.ones(3))


def go_to_tensorflow() -> None:
    tensorflow = _framework("tensorflow")
    x = tensorflow.constant([1.0, 2.0])
    dlbridge.to_tensorflow(np.arange(3.0)[::-1])
    dlbridge.to_numpy(x, dtype="float64")
    dlbridge.inspect(x)


def differentiate_in_tensorflow() -> None:
    tensorflow = _framework("tensorflow")
    x = tensorflow.constant([1.0, 2.0])
    with tensorflow.GradientTape() as tape:
        tape.watch(x)
        y = _differentiable()(x, s=2)
    tape.gradient(y, x)


# Each with a stride: of how many bytecodes one is interrupted; in the fast ring three times that.
JOBS: dict[str, tuple[Callable[[], object], int]] = {
    "from_dlpack": (lambda: dlbridge.from_dlpack(new(Producer)), 1),
    "to_numpy": (lambda: dlbridge.to_numpy(new(Producer)), 3),
    "array interface": (lambda: dlbridge.from_dlpack(new(Described)), 3),
    "byte order": (lambda: dlbridge.from_dlpack(Described(">f4")), 3),
    "buffer": (lambda: dlbridge.from_dlpack(memoryview(np.arange(3, dtype=">i4"))), 1),
    "dtype": (lambda: dlbridge.to_numpy(Producer(), dtype="float32", copy=True), 29),
    "explain": (lambda: dlbridge.explain(new(Producer), "numpy"), 7),
    "tree": (lambda: dlbridge.convert_tree({"a": [new(Producer)]}, "numpy"), 7),
    "comparison": (lambda: (dlbridge.DType("int8") == "int9", dlbridge.Device("cpu") == "c"), 3),
    "inspect": (lambda: dlbridge.inspect(new(Producer)), 11),
    "graph": (lambda: tf.load_graph(GRAPH), 29),
    "session": (run_graph, 211),
    "containers": (convert_containers, 97),
    "schema": (parse_schemas, 1499),
    "text of a graph": (load_text, 211),
    "export": (lambda: tf.dump_graph(tf.load_graph(GRAPH)), 97),
    "import": (import_graph, 97),
    "op type": (declare_op, 61),
    "kernel": (lambda: KERNEL(np.ones(6, np.float32)[::2], s=np.float32(2)), 17),
    "shape": (lambda: (dlbridge.TensorShape([1, None]) == "x", dlbridge.TensorShape(3)), 7),
    "stream": (lambda: list(dlbridge.stream([[np.ones(3)]], "numpy")), 11),
}
# In the long ring only: they take longer, or need a framework.
LONG_JOBS: dict[str, tuple[Callable[[], object], int]] = {
    "user code": (run_user_code, 67),
    "wrap": (wrap_function, 211),
    "library": (lambda: dlbridge.compile_c(SOURCE, "f", "jobs::f(x: f32[n])"), 211),
    "package": (look_for_kernels, 997),
    "torch": (go_to_torch, 41),
    "derivatives of torch": (differentiate_in_torch, 41),
    "jax": (go_to_jax, 41),
    "derivatives of jax": (differentiate_in_jax, 41),
    "tensorflow": (go_to_tensorflow, 41),
    "derivatives of tensorflow": (differentiate_in_tensorflow, 41),
}
SOURCE = """#include "dlbridge_kernel.h"
int f(void *context, DLTensor *tensors, int count) { return 0; }
"""


def interrupt(job: Callable[[], object], step: int) -> tuple[int, BaseException | None]:
    """Do a job, and send a signal at a bytecode of the package or of a producer here.

    Returns:
        The number of bytecodes seen, and what came out. The trace function ends with the signal,
        and what the handler raises there comes out of the code that is traced.
    """
    return next(_interrupted(job, step))


def _interrupted(
    job: Callable[[], object], step: int
) -> Iterator[tuple[int, BaseException | None]]:
    """Do it in a generator, which has a state of handled exceptions of its own.

    What a trace function raises at the bytecode that ends an `except` block leaves the exception of
    that block in the state, with all that its traceback holds.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and _is_dropping(frame):
            return None
        is_producer = name == __file__ and function.startswith("__dlpack")
        if not is_producer and not name.startswith(f"{PACKAGE}/"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == step:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    except BaseException as error:
        found: BaseException | None = error
    else:
        found = None
    finally:
        sys.settrace(before)
    yield count, found


def _is_dropping(frame: FrameType | None) -> bool:
    """Return whether it is in `__del__`, where Python drops what is raised."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class NarrowTimeout(TypeError, ValueError, NotImplementedError, LookupError):
    """Of classes that are caught where not every exception is."""


class LateTimeout(TimeoutError):
    """An OSError, as Python's own, which the functions of files and folders may raise."""


class AbsentTimeout(AttributeError):
    """As what says that an object has no such attribute."""


def raises_a_narrow_one(number: int, frame: object) -> None:
    raise NarrowTimeout


@pytest.mark.deeper
@pytest.mark.parametrize("raised", [Timeout, NarrowTimeout, LateTimeout, AbsentTimeout])
@pytest.mark.fast(lambda name, raised: name in JOBS and raised is Timeout)
@pytest.mark.parametrize("name", [*JOBS, *LONG_JOBS])
def test_an_exception_of_a_handler_comes_out_of_every_bytecode(
    name: str, raised: type[Exception]
) -> None:
    job, stride = (JOBS | LONG_JOBS)[name]
    if os.environ.get("DLBRIDGE_TESTS_RING", "all") == "fast":
        stride *= 3

    def handler(number: int, frame: object) -> None:
        raise raised

    signal.signal(signal.SIGUSR1, handler)
    job()
    interrupt(job, 0)  # Python 3.12 traces the bytecodes of a function from its second call
    last, error = interrupt(job, 0)
    assert error is None
    assert last > 20
    for step in range(1, last + 1, stride):
        reached, error = copy_context().run(interrupt, job, step)
        if reached >= step:  # caches of the first calls are filled meanwhile
            assert type(error) is raised, f"bytecode {step} of {last}: {error!r}"
        for stack in (SESSIONS, GRAPHS):  # where the end of a `with` block was interrupted
            stack.items.clear()


def test_a_producers_own_exception_is_still_a_refusal() -> None:
    class Failing(Producer):
        def __dlpack__(self, **keywords: Any) -> object:
            raise Timeout("its own")

    signal.signal(signal.SIGUSR1, with_any_arguments)
    with pytest.raises(dlbridge.ExchangeError, match="Timeout: its own"):
        dlbridge.from_dlpack(Failing())


class Interrupted:
    """Meets the signal while it is made an array, or an integer."""

    def __array__(self, *_: object, **__: object) -> object:
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("the handler has raised")

    def __index__(self) -> int:
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("the handler has raised")


def ask_torch_for_a_stream() -> None:
    torch = pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(torch.Tensor, "__dlpack_c_exchange_api__", raising=False)
        patch.delattr(torch.Tensor, "__c_dlpack_exchange_api__", raising=False)
        patch.setattr(torch.cuda, "current_stream", lambda _: Interrupted().__index__())
        adapter("torch").stream(0)


@pytest.mark.parametrize(
    "job",
    [
        lambda: tf.strided_slice(np.arange(3.0), Interrupted(), [1]),
        lambda: tf.constant([Interrupted()]),
        lambda: tf.expand_dims(np.ones(3), [Interrupted()]),
        ask_torch_for_a_stream,
    ],
    ids=["begin", "list", "axis", "stream"],
)
def test_a_handler_may_raise_what_is_caught_of_others(job: Callable[[], object]) -> None:
    signal.signal(signal.SIGUSR1, raises_a_narrow_one)
    with tf.Graph().as_default(), pytest.raises(NarrowTimeout):
        job()


def test_no_handler_runs_amid_the_reading_of_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """`inspect` catches what its own calls raise, and raises an exception of its own."""

    def signature(_: object) -> object:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except ValueError:
            raise ValueError("no signature") from None
        return "read"

    monkeypatch.setattr(inspect, "signature", signature)
    signal.signal(signal.SIGUSR1, raises_a_narrow_one)
    with pytest.raises(NarrowTimeout):
        read_signature(print)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    assert read_signature(print) == "read"


# ---- the sources -------------------------------------------------------------------------------

# These run in child processes of the package, in a command, or at the start of the import: nobody
# else installs handlers there, or the import fails in any case.
_APART = ("cli.py", "check/producer_rules.py", "check/consumer_rules.py", "check/conformance.py",
          "check/exchanges.py", "_core/__init__.py")  # fmt: skip
# Raised again elsewhere.
_KEPT = {
    "check/compatibility.py", "exchange/stream.py", "execution/concurrent.py", "mpi/engine.py",
}  # fmt: skip
_OF_PYTHON = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
}
# Where it is the end of a generator, which makes a RuntimeError of what a handler raises there; and
# where the clause must not run Python code, in which a handler could raise once more.
_OF_GENERATORS = ("mpi/engine.py", ["StopIteration"])


@cache
def _clauses() -> list[tuple[str, list[str], ast.ExceptHandler | ast.Call]]:
    """Return where what is caught or suppressed: the names of the classes, and the code."""
    found: list[tuple[str, list[str], ast.ExceptHandler | ast.Call]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text())) if name not in _APART else ():
            caught: list[ast.expr] = []
            if isinstance(node, ast.ExceptHandler):
                each = node.type or ast.Name("BaseException")
                caught = each.elts if isinstance(each, ast.Tuple) else [each]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                caught = node.args
            if caught and isinstance(node, ast.ExceptHandler | ast.Call):
                found.append((f"{name}:{node.lineno}", [*map(ast.unparse, caught)], node))
    return found


def _only_passes_on(node: ast.ExceptHandler | ast.Call) -> bool:
    """Return whether a clause always ends in a plain `raise`."""
    if isinstance(node, ast.Call):
        return False
    last, inside = node.body[-1], [part for each in node.body for part in ast.walk(each)]
    return (
        isinstance(last, ast.Raise)
        and last.exc is None
        and not any(isinstance(part, ast.Return | ast.Continue | ast.Break) for part in inside)
        and not any(isinstance(part, ast.Raise) and part.exc is not None for part in inside)
    )


def test_whoever_catches_exceptions_of_python_lets_those_of_handlers_pass() -> None:
    assert sum("not_from_handler" in caught[0] for _, caught, _ in _clauses()) > 200
    for where, caught, node in _clauses():
        file = where.partition(":")[0]
        if _OF_PYTHON.intersection(caught) and (file, caught) != _OF_GENERATORS:
            wanted = f"not_from_handler({', '.join(caught)})"
            assert _only_passes_on(node), f"{where}: catch {wanted}"


def test_whoever_catches_everything_raises_it_again() -> None:
    for where, caught, node in _clauses():
        if "BaseException" in caught and where.partition(":")[0] not in _KEPT:
            assert isinstance(node, ast.ExceptHandler), where
            is_raised = ast.unparse(node.body[-1]) == "raise"
            assert is_raised or "is_from_handler" in ast.unparse(node), where
