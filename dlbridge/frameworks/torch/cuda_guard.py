"""The guard of direct calls for tensors of CUDA, tried on the first one that a kernel gets.

Their words of dispatch keys follow from those of the CPU by analogy, so they are known before CUDA
is used at all. The trial starts no work, waits for none and allocates nothing on the device:
tensors without elements do. While a CUDA graph is captured it is put off, and torch's dispatcher
serves the call.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbridge._core import native
from dlbridge.dtype import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

_CUDA = 2  # kDLCUDA
_LEGACY = 1  # the legacy default stream, which torch calls 0


def announce(torch: Any) -> bool:
    """Tell the core what tensors of CUDA should look like; False where torch has no such."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    if torch.version.hip is not None or not library.exists():
        return False
    if not native.torch_stream_open(str(library)) or words(torch, "CPU") != _real_words(torch):
        return False
    native.torch_direct_cuda(*words(torch, "CUDA"), try_on)
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


def try_on(x: Any) -> bool | None:
    """Return whether the guard is right about tensors like `x`; None: not to be tried now."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_current_stream_capturing():
        return None
    answers: list[bool] = []
    # A thread of its own has none of the modes that the caller may be in.
    worker = threading.Thread(target=lambda: answers.append(_holds(torch, x)))
    worker.start()
    worker.join()
    return answers == [True]


def _holds(torch: Any, x: Any) -> bool:
    try:
        return (
            _looks_right(torch, x)
            and behaves(torch, x.device)
            and _asks_streams(torch, x.device)
            and _allocates(torch, x.device)
        )
    except Exception:  # noqa: BLE001  (whatever is different: torch's dispatcher remains)
        return False


def _looks_right(torch: Any, x: Any) -> bool:
    device = _CUDA, x.device.index
    truth = x.data_ptr(), tuple(x.shape), tuple(x.stride()), DType(x.dtype).triple, device
    keys = torch._C._dispatch_keys(x).raw_repr()
    return keys in words(torch, "CUDA") and native.torch_borrow(x) == truth


def behaves(torch: Any, device: Any) -> bool:
    """Try the guard on tensors of a device that it must let pass and that it must stop."""
    from dlbridge.frameworks.torch.guard import odd_tensors

    x = torch.empty((0, 3), device=device)
    wanting = torch.empty((0, 3), device=device, requires_grad=True)
    plain = [x, x[:, 1:], x.T, x.detach(), torch.empty(0, dtype=torch.bool, device=device)]
    if not all(map(_allows, [*plain, wanting.detach()])):
        return False
    if any(map(_allows, odd_tensors(torch, x, (0,)))):
        return False
    with _autocast(torch):
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
def _autocast(torch: Any) -> Iterator[None]:
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def _asks_streams(torch: Any, device: Any) -> bool:
    other = torch.cuda.Stream(device)
    if not _is_current(torch, device):
        return False
    with torch.cuda.stream(other):
        return _is_current(torch, device)


def _is_current(torch: Any, device: Any) -> bool:
    truth = torch.cuda.current_stream(device).cuda_stream or _LEGACY
    return bool(native.torch_stream(device.index) == truth)


def _allocates(torch: Any, device: Any) -> bool:
    from dlbridge.frameworks.torch.guard import dtypes, properties

    for dtype in dtypes(torch):
        ours = native.torch_allocate((0, 3), DType(dtype).triple, (_CUDA, device.index))
        theirs = torch.empty((0, 3), dtype=dtype, device=device)
        if ours is None or properties(torch, ours) != properties(torch, theirs):
            return False
    return True
