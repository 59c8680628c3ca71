"""The guard of direct calls: which torch.Tensors a kernel gets behind the dispatcher's back."""

from __future__ import annotations

import re
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlbridge._core import native
from dlbridge.frameworks.torch import internals as torch_guard
from dlbridge.frameworks.torch import proofs

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def guard() -> None:
    """Open the guard, as the first torch.Tensor does."""
    if proofs.proof() is None:
        pytest.skip(f"the guard was not proved for torch {torch.__version__}")
    assert torch_guard.guard_is_open()


def allows(x: Any, written: bool = False) -> bool:
    """Ask the guard here and now."""
    return native.torch_direct_allows(x, written)


PLAIN: dict[str, Callable[[], Any]] = {
    "new": lambda: torch.ones(3),
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 3),
    "view": lambda: torch.ones(3, 4)[1:, ::2],
    "transposed": lambda: torch.ones(3, 4).T,
    "expanded": lambda: torch.ones(1).expand(5),
    "integers": lambda: torch.arange(3),
    "bool": lambda: torch.ones(3) > 0,
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "conjugate, resolved": lambda: torch.ones(3, dtype=torch.complex64).conj().resolve_conj(),
    "detached": lambda: torch.ones(3, requires_grad=True).detach(),
    "of NumPy": lambda: torch.from_numpy(__import__("numpy").ones(3)),
    "of DLPack": lambda: torch.from_dlpack(__import__("numpy").ones(3)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_tensors_pass(kind: str) -> None:
    """Nothing but the memory of these tensors counts, so the dispatcher need not be asked."""
    assert allows(PLAIN[kind]())
    assert allows(PLAIN[kind](), written=True)


class _Subclass(torch.Tensor):
    pass


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(3))


def _functional() -> Any:
    return torch._to_functional_tensor(torch.ones(3))


def _quantised() -> Any:
    return torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.qint8)


def _nested() -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


ODD: dict[str, Callable[[], Any]] = {
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negative bit": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "both bits": lambda: torch.ones(3, dtype=torch.complex64).conj()._neg_view(),
    "zero tensor": lambda: torch._efficientzerotensor(3),
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "view of a leaf": lambda: torch.ones(3, requires_grad=True)[1:],
    "result": lambda: torch.ones(3, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "subclass": lambda: torch.ones(3).as_subclass(_Subclass),
    "fake": _fake,
    "functional": _functional,
    "meta": lambda: torch.ones(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(3, 3).to_mkldnn(),
    "nested": _nested,
    "quantised": _quantised,
    "uninitialised": lambda: torch.nn.LazyLinear(3).weight,
    "no tensor": lambda: [1.0, 2.0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD)
def test_odd_tensors_are_stopped(kind: str) -> None:
    """Each of these means more, or other values, than its memory holds."""
    try:
        x = ODD[kind]()
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"this torch makes no such tensor: {error}")
    assert not allows(x)
    assert not allows(x, written=True)


def test_tensors_inside_transforms_are_stopped() -> None:
    """The wrapped tensors and the plain ones that a transformed function has captured."""
    captured, seen = torch.ones(3), []

    def function(x: Any) -> Any:
        seen.append((type(x) is torch.Tensor, allows(x), allows(captured)))
        return (x * 2).sum()

    torch.vmap(function)(torch.ones(2, 3))
    torch.func.grad(function)(torch.ones(3))
    torch.func.jvp(function, (torch.ones(3),), (torch.ones(3),))
    torch.func.functionalize(function)(torch.ones(3))
    assert seen == [(True, False, False)] * 4
    assert allows(captured)


def test_dual_tensors_are_stopped() -> None:
    """A forward-mode tangent sits beside the keys, and requires_grad does not show it."""
    import torch.autograd.forward_ad as forward

    x = torch.ones(3)
    with forward.dual_level():
        dual = forward.make_dual(x, torch.ones(3))
        assert not dual.requires_grad
        assert not allows(dual)
        assert not allows(dual[1:])
        assert allows(x)


@contextmanager
def _profiler() -> Iterator[None]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


def _fake_mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def _dispatch_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return f(*args, **(kwargs or {}))

    return Mode()


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch-function mode": torch.overrides.TorchFunctionMode,
    "dispatch mode": _dispatch_mode,
    "fake mode": _fake_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "profiler": _profiler,
    "below autograd": torch._C._AutoDispatchBelowAutograd,
}


@pytest.mark.parametrize("kind", MODES)
def test_modes_stop_every_tensor(kind: str) -> None:
    """A mode wants to see the operation, and sees it through the dispatcher only."""
    x = torch.ones(3)
    with MODES[kind]():
        assert not allows(x)
    assert allows(x)


def test_without_grad_mode_gradients_do_not_matter() -> None:
    """Under no_grad torch itself would record nothing."""
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert allows(leaf, written=True)
        assert allows(torch.nn.Parameter(torch.ones(3)))
        with torch.enable_grad():
            assert not allows(leaf)


def test_inference_mode_is_as_fast() -> None:
    """Its tensors are written only inside; plain ones, which keep their version, everywhere."""
    plain = torch.ones(3)
    with torch.inference_mode():
        inside = torch.ones(3)
        assert allows(inside, written=True)
        assert allows(plain, written=True)
        assert not allows(torch.ones(3, dtype=torch.complex64).conj())
        with torch.inference_mode(False):
            assert allows(plain)
            assert not allows(inside, written=True)
    assert allows(inside)
    assert not allows(inside, written=True)


def test_each_thread_is_asked_for_itself() -> None:
    """A mode of one thread does not stop another, nor does its absence let another pass."""
    x, answers = torch.ones(3), []

    def ask() -> None:
        answers.append(allows(x))
        with torch.autocast("cpu"):
            answers.append(allows(x))

    with torch.autocast("cpu"):
        for _ in range(3):
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        assert not allows(x)
    assert answers == [True, False] * 3


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 0), (2, 0, 3), (2, 3, 1)])
def test_new_tensors_are_as_those_of_torch_empty(shape: tuple[int, ...]) -> None:
    """Allocated past Python, they can be resized, saved and told apart in nothing."""
    ours = native.torch_allocate(shape, (2, 32, 1))
    theirs = torch.empty(shape)
    assert torch_guard.properties(torch, ours) == torch_guard.properties(torch, theirs)
    ours.resize_(100).fill_(1)
    assert ours.sum() == 100
    with torch.inference_mode():
        assert native.torch_allocate((2,), (2, 32, 1)).is_inference()


@pytest.mark.parametrize("shape", [(2**40, 2**40), (0, 2**40, 2**40, 4), (2**32, 2**32, 0)])
def test_no_tensor_is_made_whose_strides_or_bytes_exceed_64_bits(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        torch.empty(shape)
    assert native.torch_allocate(shape, (2, 32, 1)) is None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_device_of_new_tensors_is_no_matter(device: str) -> None:
    """Of torch.device as a context, and of torch.set_default_device; other modes still are."""
    x = torch.ones(4)
    with torch.device(device):
        assert allows(x)
        assert native.torch_call_allows(x)
        with torch.overrides.TorchFunctionMode():
            assert not allows(x)
            assert not native.torch_call_allows(x)
        with torch.device(device):
            assert allows(x)
    torch.set_default_device(device)
    try:
        assert allows(x)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_autocast_is_a_mode_of_kernels_with_a_rule_alone(backend: str) -> None:
    x = torch.ones(4)
    with torch_guard._autocast(torch, backend):
        assert native.torch_call_allows(x)
        assert not allows(x)
        with torch.inference_mode():
            assert native.torch_call_allows(x)
            assert not allows(x)
        with torch.no_grad():
            assert native.torch_call_allows(torch.ones(2, requires_grad=True))
        with torch.overrides.TorchFunctionMode():
            assert not native.torch_call_allows(x)
        seen = []
        torch.func.vmap(lambda row: (seen.append(native.torch_call_allows(row)), row)[1])(x)
        assert seen == [False]
    assert native.torch_call_allows(x)
    assert allows(x)


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_the_guard_opens_inside_any_mode(run_python: Any) -> None:
    """The first tensor may come while modes are on; the guard is tried on a thread without."""
    code = """
        import torch, dlbridge
        from dlbridge._core import native
        with torch.inference_mode(), torch.autocast("cpu"), torch.device("cpu"):
            dlbridge.from_dlpack(torch.ones(3))
            assert not native.torch_direct_allows(torch.ones(3))
        assert native.torch_direct_allows(torch.ones(3))
        with torch.inference_mode():
            assert native.torch_direct_allows(torch.ones(3), True)
        native.torch_direct_close()
        assert not native.torch_direct_allows(torch.ones(3))
        assert native.torch_guard_allows(torch.ones(3))
        assert not native.torch_guard_allows(torch.ones(3, dtype=torch.complex64).conj())
        print("done")
    """
    assert run_python(code).check().strip() == "done"


_OF_THE_PROCESS = {
    "level": """
        with torch.autograd.forward_ad.dual_level():
            meet()
    """,
    "level of another thread": """
        with torch.autograd.forward_ad.dual_level():
            worker = threading.Thread(target=meet)
            worker.start()
            worker.join()
    """,
    "profiler": """
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(experimental_config=config):
            meet()
    """,
    "execution trace": """
        observer = torch.profiler.ExecutionTraceObserver()
        observer.register_callback(os.devnull)
        observer.start()
        meet()
        observer.unregister_callback()
    """,
    "warnings": """
        torch.set_warn_always(True)
        warnings.simplefilter("error")
        meet()
        warnings.simplefilter("default")
    """,
}


@pytest.mark.full
@pytest.mark.preloaded("torch")
@pytest.mark.parametrize("proved", [True, False], ids=["proved", "unproved"])
@pytest.mark.parametrize("state", _OF_THE_PROCESS)
def test_states_of_the_whole_process_put_the_trial_off(
    run_python: Any, state: str, proved: bool
) -> None:
    """What holds in all threads holds in the trial's too: it is made when that has ended."""
    prologue = f"""
        import os, threading, warnings
        import torch, dlbridge
        from dlbridge._core import native
        from dlbridge.frameworks.torch import internals, proofs
        if not {proved}:
            proofs.proof = lambda: None
        def meet():
            assert dlbridge.to_numpy(torch.ones(3)).tolist() == [1, 1, 1]
            assert not internals.guard_is_closed() or not {proved}
            assert internals.shim_lacks() is None or not {proved}
    """
    epilogue = """
        meet()
        assert native.torch_direct_allows(torch.ones(3))
        print("done")
    """
    code = "".join(map(textwrap.dedent, (prologue, _OF_THE_PROCESS[state], epilogue)))
    assert run_python(code).check().strip().endswith("done")


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_missing_symbols_close_the_direct_path(run_python: Any) -> None:
    """Another torch may have other names: then torch's dispatcher does everything."""
    code = """
        import torch, dlbridge
        from dlbridge._core import native
        from dlbridge.frameworks.torch import internals as torch_guard
        good = torch_guard._library
        torch_guard._library = lambda name: good(name.replace("c10", "missing"))
        assert not torch_guard.guard_is_open()
        assert not native.torch_direct_allows(torch.ones(3))
        assert dlbridge.from_dlpack(torch.ones(3)).shape == (3,)
        print("done")
    """
    assert run_python(code).check().strip() == "done"


@pytest.mark.preloaded("torch")
def test_c_compares_by_itself_what_it_is_told(run_python: Any) -> None:
    """Words of a sample that are others, or a sample that is not a tensor, close the path."""
    code = """
        import torch, dlbridge
        from dlbridge._core import native
        from dlbridge.frameworks.torch import internals as guard

        class Other:
            __slots__ = ("a", "b", "c", "_cdata")

        assert guard.guard_is_open()
        x, other = torch.ones(3), Other()
        other._cdata = 4096
        libraries = guard._library("torch_cpu"), guard._library("c10")
        types = torch.Tensor, torch.nn.Parameter
        words = guard.describe_words(torch, x)
        for place in range(1, len(words)):
            assert native.torch_direct_open(*libraries, *types, (words,))
            assert native.torch_direct_allows(x)
            wrong = (*words[:place], words[place] + 8, *words[place + 1:])
            for samples in ((wrong,), (words, wrong), ()):
                assert not native.torch_direct_open(*libraries, *types, samples)
                assert not native.torch_direct_allows(x)
        assert native.torch_guard_open(*libraries, x, torch.int8, torch.uint8)
        assert native.torch_guard_allows(x)
        assert not native.torch_guard_open(*libraries, other, torch.int8, torch.uint8)
        assert not native.torch_guard_allows(x)
        print("done")
    """
    assert run_python(code).check().strip() == "done"


def needed_symbols() -> list[str]:
    """Return the functions of libtorch without which the core does not start."""
    folder = Path(__file__).parents[2] / "dlbridge" / "_core" / "torch"
    internals, shim = ((folder / name).read_text() for name in ("internals.c", "shim.c"))
    table = internals.partition("} symbols[] = {")[2].partition("\n};")[0]
    own = re.findall(r'\{"(\w+)",\s', table)
    return own + re.findall(r'\{"(\w+)", [^{}]*?(?:REQUIRED|OF_OPERATORS)\}', shim)


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_each_function_that_libtorch_lacks_is_named(run_python: Any) -> None:
    """One that was not found must not be called."""
    if torch_guard.shim_lacks() is not None:
        pytest.skip(f"libtorch lacks {torch_guard.shim_lacks()}")
    names = needed_symbols()
    assert len(names) > 20
    code = f"""
        import torch, dlbridge
        from dlbridge._core import native
        from dlbridge.frameworks.torch import internals

        assert internals.open_shim() is None
        for name in {names!r}:
            assert internals.open_shim(hidden=name) == name, name
        assert internals.open_shim() is None
        print("done")
    """
    assert run_python(code).check().strip() == "done"


UNPROVED = """
import numpy, torch, dlbridge
from dlbridge._core import native
from dlbridge.frameworks.torch import internals as guard

{change}
x = torch.ones(3)
assert not guard.guard_is_open()
assert not native.torch_guard_allows(x) and not native.torch_direct_allows(x)
cpu = guard._library("torch_cpu")
assert native.torch_op_open(cpu, None, False, None) {operators}
assert dlbridge.from_dlpack(x).data_ptr == x.data_ptr()
kernel = dlbridge.wrap(lambda x: x + 1, "unproved::f(x: f32[n]) -> f32[n]", abi="python:torch")
assert kernel(x).tolist() == kernel.torch(x).tolist() == [2, 2, 2]
print("done")
"""


@pytest.mark.fast(lambda change: change.startswith("torch.__version__"))
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("change", "operators"),
    [
        ('torch.__version__ = "2.12.7"', '== "places"'),
        (
            """
from dlbridge.frameworks.torch import proofs
wrong = proofs.Places(24, 176, 16, 16, 24, 32, 48, 57)
proofs.PROVED = {key: row._replace(places=wrong) for key, row in proofs.PROVED.items()}
""",
            '== "places"',
        ),
    ],
)
@pytest.mark.preloaded("torch")
def test_a_torch_that_is_not_as_proved_is_served_without_its_insides(
    run_python: Any, change: str, operators: str
) -> None:
    """Another version is not looked into; a place that is wrong closes everything."""
    code = UNPROVED.format(change=change, operators=operators)
    assert run_python(code).check().strip() == "done"


# A table of torch without the function that borrows: by no other way than ours can C do it then.
WITHOUT_BORROWING = """
        import ctypes, types
        from dlbridge import ffi

        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        api.PyCapsule_New.restype = ctypes.py_object
        name = ctypes.create_string_buffer(b"dlpack_exchange_api")
        theirs = api.PyCapsule_GetPointer(getattr(torch.Tensor, guard.protocol.TABLE), name.value)
        table = ffi.new("DLPackExchangeAPI *")
        ffi.memmove(table, ffi.cast("void *", theirs), ffi.sizeof(table[0]))
        table.dltensor_from_py_object_no_sync = ffi.NULL
        address = int(ffi.cast("uintptr_t", table))
        torch.Tensor.without_borrowing = api.PyCapsule_New(address, name, None)
        guard.protocol = types.SimpleNamespace(TABLE="without_borrowing")
"""


# A check of ourselves that fails -> what must be closed then, and what stays open.
FAILED_CHECKS = {
    "_allocates": ("native.torch_allocate((2,), (2, 32, 1)) is None", "native.torch_borrow(x)"),
    "_behaves": ("not native.torch_direct_allows(x)", "native.torch_guard_allows(x)"),
    "_lends": ("native.torch_borrow(x) is None", "native.torch_direct_allows(x)"),
    "_lends_memory": ("native.torch_lend(x) is None", "native.torch_borrow(x)"),
}
# What each of them asks, and may raise.
ASKED = {
    "_is_as_empty": "_allocates",
    "_find_words": "_behaves",
    "_lends_one": "_lends",
    "_keeps_while_held": "_lends_memory",
}


@pytest.mark.fast(lambda check: check == "_behaves")
@pytest.mark.preloaded("torch")
@pytest.mark.parametrize("check", [*FAILED_CHECKS, *ASKED])
def test_a_check_that_fails_closes_its_path(run_python: Any, check: str) -> None:
    """Kernels and exchange are served in another way, with the same results."""
    closed, still_open = FAILED_CHECKS[ASKED.get(check, check)]
    code = f"""
        import torch, dlbridge
        from dlbridge._core import native
        from dlbridge.frameworks.torch import internals as guard

        {WITHOUT_BORROWING if hasattr(torch.Tensor, torch_guard.protocol.TABLE) else ""}
        guard.{check} = lambda *_: {"1 / 0" if check in ASKED else False}
        x = torch.ones(3)
        assert guard.guard_is_open()
        assert {closed}
        assert {still_open}
        schema = "checks::f(x: f32[n]) -> f32[n]"
        kernel = dlbridge.wrap(lambda x: x + 1, schema, abi="python:torch")
        assert kernel(x).tolist() == kernel.torch(x).tolist() == [2, 2, 2]
        assert dlbridge.from_dlpack(x).data_ptr == x.data_ptr()
        print("done")
    """
    assert run_python(code).check().strip() == "done"


@pytest.mark.parametrize(
    "places",
    [
        (0, 168, 16, 16, 24, 32, 48, 57),
        (16, 168, 16, 16, 24, 32, 1 << 40, 57),
        (16, 168, 16, 16, 24, 32, 48, 1 << 40),
        (16,),
        5,
    ],
)
def test_places_that_are_none_are_refused(places: Any) -> None:
    try:
        with pytest.raises((TypeError, ValueError)):
            native.torch_places(places)
        assert not native.torch_guard_allows(torch.ones(2))
    finally:
        assert torch_guard._open_guard()


@pytest.mark.usefixtures("proved_torch")
def test_threads_wait_for_one_trial_of_torchs_insides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at the same time would each see what the other has begun, and close the direct path."""
    trials, entered, goes_on = [], threading.Event(), threading.Event()
    own = torch_guard._open_guard

    def open_guard() -> bool:
        trials.append(threading.current_thread())
        assert not torch_guard.guard_is_open()  # whoever tries it gets no answer, and hangs nowhere
        entered.set()
        goes_on.wait()
        return own()

    monkeypatch.setattr(torch_guard, "_open_guard", open_guard)
    torch_guard.forget_guard()
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda: answers.append(torch_guard.guard_is_open()))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    entered.wait()
    assert not answers
    goes_on.set()
    for each in threads:
        each.join()
    assert (answers, len(trials)) == ([True] * 4, 1)
    assert torch_guard.direct_is_open()


# ---- gradients ----


def test_gradients_are_compared_with_the_tensors_of_the_call() -> None:
    """By dtype and shape; what is no torch.Tensor is left to Python, and so is what is missing."""
    x, y = torch.ones(2, 3), torch.ones(4, dtype=torch.int64)
    assert native.torch_alike((x, y), (torch.zeros(2, 3), y + 1, x))
    assert native.torch_alike((x.T,), (torch.nn.Parameter(torch.ones(3, 2)),))
    assert native.torch_alike((), ())
    for other in (x.double(), x.T, x[0], x[None], None, x.numpy(), torch.ones(2, 0)):
        assert not native.torch_alike((x,), (other,))
        assert not native.torch_alike((other,), (x,))
    assert not native.torch_alike((torch.nn.Parameter(x),), (x,))
    assert not native.torch_alike((x, x), (x,))
    for arguments in ((), ((x,),), ([x], (x,)), ((x,), x)):
        with pytest.raises(TypeError, match="two tuples"):
            native.torch_alike(*arguments)
