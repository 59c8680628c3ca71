"""What the core may assume of a torch.Tensor without asking torch, tried before it is relied on.

Two questions are answered in C. May the exchange table export the tensor's memory as it is? And
may a kernel be called with it without torch's dispatcher? Both answers rest on symbols and on
places of words that no header promises, so they are given for versions of torch in `PROVED` only;
and there they are tried on tensors and modes of every kind. On another version, or after any
surprise, the C path is closed and everything goes through torch itself.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.exchange import protocol
from dlbridge.frameworks.torch import cuda_guard as torch_cuda_guard

# Where words lie, in bytes: the at::Tensor in a torch.Tensor; the keys and the StorageImpl in a
# TensorImpl; the data and the size in a StorageImpl. By version, whatever it is built for.
PROVED = {"2.13.0": (16, 168, 16, 16, 48)}


@functools.cache
def guard_is_open() -> bool:
    """Return whether the core can tell by itself which tensors their table may export."""
    answers: list[bool] = []
    # A thread of its own has none of the modes that the caller may be in, tracing included.
    worker = threading.Thread(target=lambda: answers.append(_open_guard()))
    worker.start()
    worker.join()
    return answers == [True]


def _open_guard() -> bool:
    torch: Any = sys.modules["torch"]
    sample = torch.ones(2, device="cpu")
    libraries = _library("torch_cpu"), _library("c10")
    native.torch_places(PROVED.get(str(torch.__version__).partition("+")[0]))
    if not native.torch_guard_open(*libraries, sample, torch.int8, torch.uint8):
        return False
    _open_direct(torch)
    lazy = torch.ones(2, dtype=torch.complex64, device="cpu").conj()
    plain = [sample, sample[1:], torch.zeros((), device="cpu")]
    others = [lazy, lazy.imag, torch.ones(2, requires_grad=True), torch._efficientzerotensor(2)]
    return all(map(native.torch_guard_allows, plain)) and not any(
        map(native.torch_guard_allows, others)
    )


def _library(name: str) -> str:
    torch: Any = sys.modules["torch"]
    return str(Path(torch.__file__).parent / "lib" / f"lib{name}.so")


# ---- direct calls ----


def _open_direct(torch: Any) -> None:
    try:
        is_open = _find_words(torch) and _behaves(torch)
    except Exception:  # noqa: BLE001  (whatever is different: torch's dispatcher remains)
        is_open = False
    if not is_open:
        native.torch_direct_close()
        return
    table = getattr(torch.Tensor, protocol.TABLE)
    if native.torch_memory_open(_library("torch_cpu"), _library("torch_python"), table):
        native.torch_memory_close(not _lends(torch), not _allocates(torch))
    torch_cuda_guard.announce(torch)


def _find_words(torch: Any) -> bool:
    lazy = torch.ones(7, dtype=torch.complex64, device="cpu").conj()
    tensors = [torch.ones(5, dtype=torch.int8, device="cpu"), torch.ones(1021, device="cpu"), lazy]
    samples = tuple(_describe_words(torch, x) for x in tensors)
    found = native.torch_direct_open(
        _library("torch_cpu"), _library("c10"), torch.Tensor, torch.nn.Parameter, samples
    )
    if found:
        with torch.inference_mode():
            native.torch_direct_learn(torch.ones(2, device="cpu"))
    return found


def _describe_words(torch: Any, x: Any) -> tuple[Any, int, int, int, int]:
    storage = x.untyped_storage()
    keys = torch._C._dispatch_keys(x).raw_repr()
    return x, keys, storage._cdata, storage.data_ptr(), storage.nbytes()


def _behaves(torch: Any) -> bool:
    """Try the guard on tensors, and on modes, that it must let pass and that it must stop."""
    x, allows = torch.ones(4, device="cpu"), native.torch_direct_allows
    wanting = torch.ones(2, requires_grad=True, device="cpu")
    plain = [x, x[1:], x[::2], x.expand(3, 4), x[0], x.to(torch.bool), wanting.detach()]
    if not all(map(allows, plain)) or any(map(allows, odd_tensors(torch, x))):
        return False
    for mode in _odd_modes(torch):
        with mode:
            if allows(x):
                return False
    with torch.no_grad():
        if not allows(wanting) or not allows(torch.nn.Parameter(x)):
            return False
    return _behaves_in_inference(torch, x) and allows(x)


def _behaves_in_inference(torch: Any, x: Any) -> bool:
    allows = native.torch_direct_allows
    with torch.inference_mode():
        inside = torch.ones(2, device="cpu")
        passes = allows(x, True) and allows(inside, True)
    return passes and allows(inside) and not allows(inside, True)


def odd_tensors(torch: Any, x: Any, shape: tuple[int, ...] = (2,)) -> Iterator[Any]:
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
        torch.sparse_coo_tensor(size=(2, 2), check_invariants=False, **on),
    )
    subclass = type("Subclass", (torch.Tensor,), {})  # as a FakeTensor is one, too
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
    level = torch._C._enter_dual_level()
    try:
        yield torch._VF._make_dual(x, x.clone(), level=level)
    finally:
        torch._C._exit_dual_level(level=level)


def _odd_modes(torch: Any) -> Iterator[AbstractContextManager[Any]]:
    yield torch.overrides.TorchFunctionMode()
    yield _dispatch_mode()
    yield torch.autocast("cpu")
    yield _switched(
        lambda: torch._C._functorch._vmap_increment_nesting(4, "error"),
        torch._C._functorch._vmap_decrement_nesting,
    )
    yield _profiling(torch)


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
        lambda: autograd._enable_profiler_legacy(config), autograd._disable_profiler_legacy
    )


@contextmanager
def _switched(on: Callable[[], Any], off: Callable[[], Any]) -> Iterator[None]:
    on()
    try:
        yield
    finally:
        off()


# ---- their memory ----


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
    except Exception:  # noqa: BLE001  (the table remains)
        return False


def _lends_one(x: Any) -> bool:
    truth = x.data_ptr(), tuple(x.shape), tuple(x.stride()), DType(x.dtype).triple, (1, 0)
    return native.torch_borrow(x) == truth


def _allocates(torch: Any) -> bool:
    samples: list[tuple[Any, Any]] = [((2, 3), dtype) for dtype in dtypes(torch)]
    samples += [(shape, torch.int8) for shape in ((), (0, 4), (3, 1))]
    try:
        return all(_is_as_empty(torch, *sample) for sample in samples)
    except Exception:  # noqa: BLE001  (torch.empty remains)
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
