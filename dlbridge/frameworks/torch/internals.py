"""Everything that knows torch's insides, behind the proofs of `proofs`.

Two decisions are made in C. May the exchange table export a tensor's memory as it is? And may a
kernel be called with it without torch's dispatcher? Both rest on C++ symbols by their
mangled names and on the places of words in torch's objects, which no header promises. A proof has
them. On any version without one no memory is read to find things out: the public exchange table
and the dispatcher serve, and queries of torch's functions, Python's and C++'s.

On a proved version all is still tried before it is relied on, on tensors and modes of every kind,
since the same version may be built in another way. Any surprise closes the direct path. A trial is
put off while the process is in a state that would surprise it: `_is_disturbed`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.exchange import protocol
from dlbridge.frameworks.torch import proofs
from dlbridge.signals import not_from_handler

_CUDA = 2  # kDLCUDA
_LEGACY = 1  # the legacy default stream, which torch calls 0


def path() -> str:
    """Return which path torch's tensors take here, for the table of frameworks.

    torch is not imported for it: before it is, the table of versions tells.
    """
    if proofs.proof() is None:
        return f"general: {proofs.why_unproved()}"
    if "torch" in sys.modules and not direct_is_open():
        return "general: torch is not as it was proved"
    return "direct"


def direct_is_open() -> bool:
    """Return whether kernels get torch's tensors without its dispatcher, and memory of its own."""
    torch: Any = sys.modules["torch"]
    return guard_is_open() and native.torch_direct_allows(torch.empty(0, device="cpu"))


def probe() -> Any:
    """Return a tensor for which `torch_direct_allows` tells whether this thread has modes.

    It is made in a thread without any: within a mode it could be a fake tensor.
    """
    torch: Any = sys.modules["torch"]
    made: list[Any] = []
    worker = threading.Thread(target=lambda: made.append(torch.empty(0, device="cpu")))
    worker.start()
    worker.join()
    return made[0]


_OPEN: list[bool] = []  # of `guard_is_open`, once it is known
_QUERIED: list[bool] = []  # of `queries_are_open`
_PLACED: list[bool] = []  # whether C knows the places while the guard is not open
_TRYING: list[threading.Thread] = []  # the thread that finds it out
_OPENING = registry.lock()


def guard_is_open() -> bool:
    """Return whether the core can tell by itself which tensors the exchange table may export.

    The first call finds it out; other threads wait for that, since two trials at the same time
    would each see what the other one has only begun.
    """
    if _OPEN:
        return _OPEN[0]
    return not _is_disturbed() and _find_out(
        _OPEN, lambda: proofs.proof() is not None and _try(_open_guard)
    )


def guard_is_closed() -> bool:
    """Return whether it is known that `guard_is_open` will not return True."""
    return _OPEN == [False]


def forget_guard() -> None:
    """Let the next call of `guard_is_open` find it out again; for tests."""
    _OPEN.clear()


def queries_are_open() -> bool:
    """Return whether the core queries torch for what it does not know of its internals.

    Of a version without a proof: which tensors are plain, and which threads have no modes. The
    first call finds it out.
    """
    if _QUERIED:
        return _QUERIED[0]
    return not _is_disturbed() and _find_out(_QUERIED, lambda: _try(_set_queries))


def _find_out(found: list[bool], attempt: Callable[[], bool]) -> bool:
    if threading.current_thread() in _TRYING:
        return False
    with _OPENING:
        if any(each.is_alive() for each in _TRYING):  # called by a handler of a signal meanwhile
            return False
        if not found:
            found.append(attempt())
    return found[0]


def _is_disturbed() -> bool:
    """Return whether the process, not only this thread, has what no trial can step out of.

    A level of forward mode is the only one of all threads. An observer of all threads (of a
    profiler or an execution trace) has to see every call, and is itself no sign of another torch.
    """
    torch: Any = sys.modules["torch"]
    if getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0:
        return True
    library = _library("torch_cpu") if proofs.proof() is not None else None
    return library is not None and native.torch_is_observed(library)


def _try(attempt: Callable[[], bool]) -> bool:
    results: list[bool] = []
    # A thread of its own has none of the modes that the caller may be in, tracing included.
    worker = threading.Thread(target=lambda: results.append(attempt()))
    _TRYING[:] = [worker]  # one of before a fork is none
    worker.start()
    try:
        worker.join()
    finally:  # once more, for an interrupt: nobody else may begin before it has ended
        worker.join()
        _TRYING.clear()
    return results == [True]


def _hand_in_places() -> bool:
    found = proofs.proof()
    torch: Any = sys.modules["torch"]
    if found is None or not _agrees(torch, found, torch.ones(2, device="cpu")):
        return False
    native.torch_places(found.places)
    return True


def _open_guard() -> bool:
    if not _hand_in_places():
        return False
    torch: Any = sys.modules["torch"]
    sample = torch.ones(2, device="cpu")
    libraries = _library("torch_cpu"), _library("c10")
    native.torch_tracing(torch._C._get_tracing_state)
    if not native.torch_guard_open(*libraries, sample, torch.int8, torch.uint8):
        return False
    _open_direct(torch)
    _try_harmless_modes(torch)
    lazy = torch.ones(2, dtype=torch.complex64, device="cpu").conj()
    plain = [sample, sample[1:], torch.zeros((), device="cpu")]
    others = [lazy, lazy.imag, torch.ones(2, requires_grad=True), torch._efficientzerotensor(2)]
    return all(map(native.torch_guard_allows, plain)) and not any(
        map(native.torch_guard_allows, others)
    )


def _agrees(torch: Any, found: proofs.Proof, sample: Any) -> bool:
    """Compare words of a tensor with what torch itself says of them, at the proved places only."""
    places = found.places
    if places.tensor + 8 > type(sample).__basicsize__ or not _has_symbols(found):
        return False
    word = ctypes.c_uint64.from_address
    _, keys, storage, data, nbytes = describe_words(torch, sample)
    impl = sample._cdata
    return (
        word(id(sample) + places.tensor).value == impl
        and word(impl + places.keys).value == keys
        and word(impl + places.storage).value == storage
        and word(storage + places.data).value == data
        and word(storage + places.nbytes).value == nbytes
    )


def _has_symbols(found: proofs.Proof) -> bool:
    try:
        return all(
            hasattr(ctypes.CDLL(_library(library)), symbol)
            for library, symbols in found.symbols.items()
            for symbol in symbols
        )
    except not_from_handler(OSError):
        return False


def _library(name: str) -> str:
    torch: Any = sys.modules["torch"]
    return str(Path(torch.__file__).parent / "lib" / f"lib{name}.so")


# ---- direct calls ----


def _open_direct(torch: Any) -> None:
    try:
        is_open = _find_words(torch) and _behaves(torch)
    except not_from_handler(Exception):  # whatever is different: torch's dispatcher remains
        is_open = False
    if not is_open:
        native.torch_direct_close()
        return
    table = getattr(torch.Tensor, protocol.TABLE, None)  # torch before 2.10 has none
    if native.torch_memory_open(_library("torch_cpu"), _library("torch_python"), table):
        native.torch_memory_close(not _lends(torch), not _allocates(torch))
    if not _lends_memory(torch):
        native.torch_lending_close()
    announce_cuda(torch)


def _find_words(torch: Any) -> bool:
    lazy = torch.ones(7, dtype=torch.complex64, device="cpu").conj()
    tensors = [torch.ones(5, dtype=torch.int8, device="cpu"), torch.ones(1021, device="cpu"), lazy]
    samples = tuple(describe_words(torch, x) for x in tensors)
    found = native.torch_direct_open(
        _library("torch_cpu"), _library("c10"), torch.Tensor, torch.nn.Parameter, samples
    )
    if found:
        with torch.inference_mode():
            native.torch_direct_learn(torch.ones(2, device="cpu"))
    return found


def describe_words(torch: Any, x: Any) -> tuple[Any, int, int, int, int]:
    """Return a tensor, and what torch says of its keys, storage, data and bytes of the storage."""
    storage = x.untyped_storage()
    keys = torch._C._dispatch_keys(x).raw_repr()
    return x, keys, storage._cdata, storage.data_ptr(), storage.nbytes()


def _behaves(torch: Any) -> bool:
    """Try the guard on tensors, and on modes, that it must let pass and that it must stop."""
    x, allows = torch.ones(4, device="cpu"), native.torch_direct_allows
    return _tells_apart(torch, x) and _behaves_in_inference(torch, x) and allows(x)


def _tells_apart(torch: Any, x: Any) -> bool:
    allows = native.torch_direct_allows
    wanting = torch.ones(2, requires_grad=True, device="cpu")
    plain = [x, x[1:], x[::2], x.expand(3, 4), x[0], x.to(torch.bool), wanting.detach()]
    if not all(map(allows, plain)) or any(map(allows, unusual_tensors(torch, x))):
        return False
    for mode in _unusual_modes(torch):
        with mode:
            if allows(x):
                return False
    with torch.no_grad():
        return allows(wanting) and allows(torch.nn.Parameter(x))


def _behaves_in_inference(torch: Any, x: Any) -> bool:
    allows = native.torch_direct_allows
    with torch.inference_mode():
        inside = torch.ones(2, device="cpu")
        passes = allows(x, True) and allows(inside, True)
    return passes and allows(inside) and not allows(inside, True)


def unusual_tensors(torch: Any, x: Any, shape: tuple[int, ...] = (2,)) -> Iterator[Any]:
    """Yield tensors that no kernel may get directly, wrapped ones while they are valid.

    They are on the device of `x`, a plain tensor, and have `shape`.
    """
    on: dict[str, Any] = {"device": x.device}
    lazy = torch.empty(shape, dtype=torch.complex64, **on).conj()
    yield from (lazy, lazy.imag, torch._efficientzerotensor(shape, **on))
    wanting = torch.empty(shape, requires_grad=True, **on)
    yield from (wanting, wanting[1:], wanting * 2, torch.nn.Parameter(x))
    yield from (
        torch.empty(shape, device="meta"),
        torch.empty((2, 2), layout=torch.sparse_coo, **on),
    )
    subclass = type("Subclass", (torch.Tensor,), {})  # as a FakeTensor is one
    yield subclass(x)
    functorch = torch._C._functorch
    level = functorch._vmap_increment_nesting(4, "error")
    try:
        yield functorch._add_batch_dim(x, 0, level)
    finally:
        functorch._vmap_decrement_nesting()
    level = functorch._grad_increment_nesting()
    try:
        yield functorch._wrap_for_grad(x, level)
    finally:
        functorch._grad_decrement_nesting()
    with torch.autograd.forward_ad.dual_level():
        yield torch._make_dual(x, x.clone(), level=0)  # make_dual loads all decompositions first


def _unusual_modes(torch: Any) -> Iterator[AbstractContextManager[Any]]:
    yield torch.overrides.TorchFunctionMode()
    yield _dispatch_mode()
    yield torch.autocast("cpu")
    yield _switched(
        functools.partial(torch._C._functorch._vmap_increment_nesting, 4, "error"),
        torch._C._functorch._vmap_decrement_nesting,
    )
    yield _profiling(torch)


def _try_harmless_modes(torch: Any) -> None:
    """Let C call kernels in modes that leave them alone, if they are recognised.

    `torch.autocast` casts arguments of torch's own functions, and of kernels with `autocast=`. A
    default device is that of new tensors for which none is said.
    """
    try:
        own, keys = torch._C, torch._C.DispatchKeySet
        backends = (own.DispatchKey.AutocastCPU, own.DispatchKey.AutocastCUDA)
        mode = importlib.import_module("torch.utils._device").DeviceContext
        counts = own._len_torch_function_stack, own._get_function_stack_at
        word = (keys(backends[0]) | keys(backends[1])).raw_repr()
        native.torch_harmless(word, mode, *counts)
        is_right = _passes_harmless_modes(torch)
    except not_from_handler(Exception):  # whatever is different: torch's dispatcher remains
        is_right = False
    if not is_right:
        native.torch_harmless(0, None, None, None)


def _passes_harmless_modes(torch: Any) -> bool:
    x, allows = torch.ones(4, device="cpu"), native.torch_call_allows
    subclass: Any = type("Mode", (torch.utils._device.DeviceContext,), {})
    for device in ("cpu", "meta"):
        with torch.device(device):
            if not (allows(x) and native.torch_direct_allows(x)):
                return False
            for mode in (torch.overrides.TorchFunctionMode(), _dispatch_mode()):
                with mode:
                    if allows(x):
                        return False
    with subclass("cpu"):  # which torch 2.6 would not have inside of another one
        if allows(x):
            return False
    for backend in ("cpu", "cuda"):
        with _autocast(torch, backend):
            if not allows(x) or native.torch_direct_allows(x):
                return False
            with torch.inference_mode():
                if native.torch_direct_allows(x):
                    return False
            with _dispatch_mode():
                if allows(x):
                    return False
    return allows(x)


def _dispatch_mode() -> AbstractContextManager[Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    def call(_self: Any, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))

    mode: Any = type("Mode", (TorchDispatchMode,), {"__torch_dispatch__": call})
    return mode()  # type: ignore[no-any-return]


def _profiling(torch: Any) -> AbstractContextManager[None]:
    profiler = torch._C._profiler
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.CPU, *(False,) * 5, profiler._ExperimentalConfig()
    )
    autograd = torch._C._autograd
    return _switched(
        functools.partial(autograd._enable_profiler_legacy, config),
        autograd._disable_profiler_legacy,
    )


@contextmanager
def _switched(on: Callable[[], Any], off: Callable[[], Any]) -> Iterator[None]:
    """Call `on`, and `off` at the end; both are functions in C, so that an interrupt is outside."""
    steps = map(operator.call, (on, off))
    try:
        try:
            next(steps)
            yield
        finally:
            list(steps)
    finally:  # once more, for an interrupt of the first time
        list(steps)


# ---- queries of torch ----------------------------------------------------------------------------
#
# Without a proof the core queries torch by functions that Python code may call, so that a version
# where one is missing or behaves otherwise raises an exception, and no address is ever wrong. They
# cost more than reading words. A dual level that was not entered by torch.autograd.forward_ad, and
# an observer other than a profiler, are not detected.
#
# Where all are there, C++ functions by their whole names take the place of most: see
# `_core/torch/functions.c`. They are compared with what Python's functions say of every kind of
# tensor and mode. A kind of tensor that is exactly of type torch.Tensor, has memory that the
# exchange table exports, and is known to none of them would not be detected.


def _set_queries() -> bool:
    torch: Any = sys.modules["torch"]
    try:
        if not _query(torch):
            return False
        is_right = _tells_apart(torch, torch.ones(4, device="cpu")) and _stops_levels(torch)
    except not_from_handler(Exception):  # whatever is different: Python decides
        native.torch_queries_close(True)
        return False
    native.torch_queries_close(not is_right)
    _try_harmless_modes(torch)
    if not _try_functions(torch):
        native.torch_functions_close()
    return True


def _try_functions(torch: Any) -> bool:
    """Try the C++ functions by which most queries take a fifth of the time."""
    x, allows = torch.ones(4, device="cpu"), native.torch_direct_allows
    if not allows(x) or not sys.platform.startswith("linux"):
        return False
    native.torch_tracing(torch._C._get_tracing_state)
    try:
        if not native.torch_functions_open(_library("torch_cpu"), _library("c10"), x):
            return False
        with torch.inference_mode():
            native.torch_functions_learn()
        return (
            _tells_apart(torch, x)
            and _stops_levels(torch)
            and not any(map(allows, _without_values(torch, x)))
            and _counts_and_reaches(torch)
        )
    except not_from_handler(Exception):  # whatever is different: Python's functions remain
        return False


def _without_values(torch: Any, x: Any) -> Iterator[Any]:
    """Yield tensors of type torch.Tensor whose memory is not their values, outside of all modes.

    The exchange table refuses those whose keys no function reports.
    """
    functorch = torch._C._functorch
    level = functorch._vmap_increment_nesting(4, "error")
    try:
        wrapped = [functorch._add_batch_dim(x, 0, level)]
    finally:
        functorch._vmap_decrement_nesting()
    level = functorch._grad_increment_nesting()
    try:
        wrapped.append(functorch._wrap_for_grad(x, level))
    finally:
        functorch._grad_decrement_nesting()
    yield from wrapped
    yield from (x.reshape(2, 2).to_sparse(), torch._to_functional_tensor(x))
    yield torch._to_functional_tensor(x[:0])
    if torch.backends.mkldnn.is_available():
        yield x.reshape(2, 2).to_mkldnn()


def _counts_and_reaches(torch: Any) -> bool:
    """Try what is asked of storages, dtypes and versions, on memory that views share."""
    x = torch.ones(8, device="cpu")
    tensors = [x, x[2:], x[::2], x[1].expand(3), x[:0], x.view(torch.uint8), x.bool()]
    if not all(map(native.torch_query_fits, tensors)):
        return False
    before = x._version
    native.torch_query_wrote(x)
    with torch.inference_mode():
        native.torch_query_wrote(torch.ones(2, device="cpu"))  # which has no version
    narrow = torch.empty(4, dtype=torch.uint8, device="cpu")
    others = [narrow.view(torch.uint4)] if hasattr(torch, "uint4") else []
    others += [x, x[4:]]
    x.untyped_storage().resize_(16)
    return before + 1 == x._version and not any(map(native.torch_query_fits, others))


def _query(torch: Any) -> bool:
    own = torch._C
    own_dtypes = dtypes(torch)
    with torch.inference_mode():
        inside = torch.ones(2, device="cpu")
        thread = own._dispatch_tls_local_include_set(), own._dispatch_tls_local_exclude_set()
    return native.torch_queries(
        (torch.Tensor, torch.nn.Parameter),
        getattr(torch.Tensor, protocol.TABLE, None),  # torch before 2.10 has none
        (
            own._dispatch_keys,
            own._dispatch_tls_local_include_set,
            own._dispatch_tls_local_exclude_set,
            own._len_torch_function_stack,
            own._autograd._profiler_enabled,
            torch.is_grad_enabled,
            own._get_tracing_state,
            torch.empty,
            getattr(torch.autograd.graph, "increment_version", None),  # old torch has none
            torch.is_inference_mode_enabled,
        ),
        vars(torch.autograd.forward_ad),
        frozenset(own_dtypes),
        {DType(dtype).triple: dtype for dtype in own_dtypes},
        (torch.ones(2, device="cpu"), inside),
        (thread[0].raw_repr(), thread[1].raw_repr()),
    )


def _stops_levels(torch: Any) -> bool:
    """Try inference mode, and one in which queries refuse, where the guard knows better."""
    x, allows = torch.ones(4, device="cpu"), native.torch_direct_allows
    with torch.inference_mode():
        inside = torch.ones(2, device="cpu")
        if not (allows(x) and allows(inside)):
            return False
    if allows(inside):
        return False
    with torch.autograd.forward_ad.dual_level():
        if allows(x):
            return False
    return allows(x)


# ---- memory of tensors ----


def _lends_memory(torch: Any) -> bool:
    """Try whether memory stays while its storage or a view of it lives, and no longer."""
    own = torch.ones(5, device="cpu")
    try:
        part = torch.empty(0, device="cpu").set_(own.untyped_storage()[8:])
        if not native.torch_lending_open(own, torch.from_numpy(np.ones(1)), part):
            return False
        address, view = own.data_ptr(), native.torch_lend(own)
        return (
            view is not None
            and own.data_ptr() == view.data_ptr == address
            and not own.untyped_storage().resizable()
            and all(_keeps_while_held(torch, first) for first in (0, 1))
        )
    except not_from_handler(Exception):  # the table remains
        return False


def _keeps_while_held(torch: Any, first: int) -> bool:
    """Drop the storage and the view of an array's memory one after the other, `first` first."""
    array = np.ones(3).view(_Watched)
    gone = weakref.ref(array)
    held = [torch.from_numpy(array)]
    held.append(native.torch_lend(held[0]))
    del array, held[first]
    stayed = gone() is not None
    held.clear()
    return stayed and gone() is None


class _Watched(np.ndarray[Any, Any]):
    """An array with weak references."""


def dtypes(torch: Any) -> list[Any]:
    """Return torch's dtypes that kernels may get directly."""
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
    names += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


def _lends(torch: Any) -> bool:
    """Compare what kernels would see of tensors of every dtype, and of layouts, with the truth."""
    base = torch.empty((4, 6, 1), device="cpu")
    layouts = [base, base[1:, ::2], base.mT, base[:, 0].expand(3, 4, 1), base[0, 0, 0], base[:0]]
    layouts += [torch.empty((1, 2, 1, 2, 1, 2, 1), device="cpu").permute(6, 5, 4, 3, 2, 1, 0)]
    tensors = [torch.empty((2, 3), dtype=dtype, device="cpu") for dtype in dtypes(torch)]
    try:
        return all(map(_lends_one, tensors + layouts))
    except not_from_handler(Exception):  # the table remains
        return False


def _lends_one(x: Any) -> bool:
    truth = x.data_ptr(), tuple(x.shape), tuple(x.stride()), DType(x.dtype).triple, (1, 0)
    return native.torch_borrow(x) == truth


def _allocates(torch: Any) -> bool:
    samples: list[tuple[Any, Any]] = [((2, 3), dtype) for dtype in dtypes(torch)]
    samples += [(shape, torch.int8) for shape in ((), (0, 4), (3, 1))]
    try:
        return all(_is_as_empty(torch, *sample) for sample in samples)
    except not_from_handler(Exception):  # torch.empty remains
        return False


def _is_as_empty(torch: Any, shape: tuple[int, ...], dtype: Any) -> bool:
    """Compare a tensor of ours with one of torch.empty, in everything that can be asked."""
    ours = native.torch_allocate(shape, DType(dtype).triple)
    theirs = torch.empty(shape, dtype=dtype, device="cpu")
    return ours is not None and properties(torch, ours) == properties(torch, theirs)


def properties(torch: Any, x: Any) -> list[Any]:
    """Return everything that can be asked of a new tensor."""
    storage = x.untyped_storage()
    return [
        *(type(x), x.dtype, x.shape, x.stride(), x.device, x.layout, x.requires_grad),
        *(x.is_leaf, x.grad_fn, x._version, x._use_count(), sys.getrefcount(x)),
        *(torch._C._dispatch_keys(x).raw_repr(), x.is_contiguous(), x.storage_offset()),
        *(storage.resizable(), storage.nbytes(), storage.device, x.is_inference()),
    ]


# ---- operators in C ------------------------------------------------------------------------------

_SHIM: list[str | None] = []


def shim_lacks() -> str | None:
    """Return what libtorch does not have of what C needs, or None: operators are made in C."""
    if not _SHIM:
        _SHIM.append(open_shim())
    return _SHIM[0]


def open_shim(hidden: str | None = None) -> str | None:
    """Look libtorch's functions up, all but `hidden`; return the first that is missing."""
    if not sys.platform.startswith("linux"):
        return sys.platform
    if proofs.proof() is None:
        return f"what was proved: {proofs.why_unproved()}"
    if not guard_is_open():  # else the places are known; its trial may be put off
        _find_out(_PLACED, lambda: bool(_OPEN) or _try(_hand_in_places))
    torch: Any = sys.modules["torch"]
    cuda = _library("torch_cuda")
    return native.torch_op_open(
        _library("torch_cpu"),
        cuda if Path(cuda).exists() else None,
        torch.version.hip is not None,
        hidden,
    )


# ---- CUDA ----------------------------------------------------------------------------------------
#
# The guard for tensors of CUDA is tried on the first one that a kernel gets. Their words of
# dispatch keys follow from those of the CPU by analogy, so they are known before CUDA is used at
# all. The trial starts no work, waits for none and allocates nothing on the device: tensors without
# elements do. While a CUDA graph is captured it is put off, and torch's dispatcher serves the call.


def announce_cuda(torch: Any) -> bool:
    """Tell the core what tensors of CUDA should look like; False where torch has no such."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    if torch.version.hip is not None or not library.exists():
        return False
    if not native.torch_stream_open(str(library)) or words(torch, "CPU") != _real_words(torch):
        return False
    native.torch_direct_cuda(*words(torch, "CUDA"), try_cuda)
    return True


def words(torch: Any, backend: str) -> tuple[int, int]:
    """Return the keys of a plain tensor of a backend, and of one made in inference mode."""
    keys = torch._C.DispatchKeySet

    def of(name: str) -> Any:
        return keys(getattr(torch._C.DispatchKey, name))

    inference = of(backend) | of(f"Autocast{backend}")
    plain = inference | of(f"Autograd{backend}") | of("ADInplaceOrView")
    return plain.raw_repr(), inference.raw_repr()


def _real_words(torch: Any) -> tuple[int, int]:
    plain = torch.empty(0, device="cpu")
    with torch.inference_mode():
        inference = torch.empty(0, device="cpu")
    made = [torch._C._dispatch_keys(each).raw_repr() for each in (plain, inference)]
    return made[0], made[1]


def try_cuda(x: Any) -> bool | None:
    """Return whether the guard is right about tensors like `x`; None: not to be tried now."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_current_stream_capturing():
        return None
    results: list[bool] = []
    # A thread of its own has none of the modes that the caller may be in.
    worker = threading.Thread(target=lambda: results.append(_holds_for_cuda(torch, x)))
    worker.start()
    worker.join()
    return results == [True]


def _holds_for_cuda(torch: Any, x: Any) -> bool:
    try:
        return (
            _looks_right(torch, x)
            and behaves_on(torch, x.device)
            and _asks_streams(torch, x.device)
            and _allocates_cuda(torch, x.device)
        )
    except not_from_handler(Exception):  # whatever is different: torch's dispatcher remains
        return False


def _looks_right(torch: Any, x: Any) -> bool:
    device = _CUDA, x.device.index
    truth = x.data_ptr(), tuple(x.shape), tuple(x.stride()), DType(x.dtype).triple, device
    keys = torch._C._dispatch_keys(x).raw_repr()
    return keys in words(torch, "CUDA") and native.torch_borrow(x) == truth


def behaves_on(torch: Any, device: Any) -> bool:
    """Try the guard on tensors of a device that it must let pass and that it must stop."""
    x = torch.empty((0, 3), device=device)
    wanting = torch.empty((0, 3), device=device, requires_grad=True)
    plain = [x, x[:, 1:], x.T, x.detach(), torch.empty(0, dtype=torch.bool, device=device)]
    if not all(map(_allows, [*plain, wanting.detach()])):
        return False
    if any(map(_allows, unusual_tensors(torch, x, (0,)))):
        return False
    with _autocast(torch, "cuda"):
        if _allows(x):
            return False
    with torch.no_grad():
        if not _allows(wanting) or not _allows(torch.nn.Parameter(x)):
            return False
    with torch.inference_mode():
        inside = torch.empty((0, 3), device=device)
        passes = _allows(x, True) and _allows(inside, True)
    return passes and _allows(inside) and not _allows(inside, True) and _allows(x)


def _allows(x: Any, written: bool = False) -> bool:
    return native.torch_direct_allows(x, written, True)


@contextmanager
def _autocast(torch: Any, backend: str) -> Iterator[None]:
    before = torch.is_autocast_enabled(backend)
    try:
        try:
            torch.set_autocast_enabled(backend, True)
            yield
        finally:
            torch.set_autocast_enabled(backend, before)
    finally:  # once more, for an interrupt of the first time
        torch.set_autocast_enabled(backend, before)


def _asks_streams(torch: Any, device: Any) -> bool:
    other = torch.cuda.Stream(device)
    if not _is_current(torch, device):
        return False
    with torch.cuda.stream(other):
        return _is_current(torch, device)


def _is_current(torch: Any, device: Any) -> bool:
    truth = torch.cuda.current_stream(device).cuda_stream or _LEGACY
    return bool(native.torch_stream(device.index) == truth)


def _allocates_cuda(torch: Any, device: Any) -> bool:
    for dtype in dtypes(torch):
        ours = native.torch_allocate((0, 3), DType(dtype).triple, (_CUDA, device.index))
        theirs = torch.empty((0, 3), dtype=dtype, device=device)
        if ours is None or properties(torch, ours) != properties(torch, theirs):
            return False
    return True
