"""Storages that move to shared memory while their memory is lent, in a torch that is not proved.

`share_memory_`, and every pickle for another process, puts a storage's values into shared memory
and frees the memory where they were, whoever has a view of it. On a proved version the core holds
that memory itself (`_core/torch/internals.c`). Elsewhere the public API can only hold the storage.
But the storage moves by two methods of its Python object, which stays the same as long as the
storage lives. So on a storage that was lent these two are wrapped: before it moves, its memory is
handed to a lazy clone, which lives as long as the views. Memory that torch did not allocate cannot
be cloned lazily; its storage refuses to move under a view.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any
from weakref import ref

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.signals import not_from_handler

_MOVES = ("_share_fd_cpu_", "_share_filename_cpu_")
_LOCK = registry.lock()
_MEMORY = "_dlbridge_memory"  # of a storage: its native.TorchMemory, which the views of it hold


def lent(x: Any, tensor: native.TensorBase) -> native.TensorBase:
    """Return a Tensor that keeps its memory when the storage of `x`, on the CPU, moves."""
    held = hold(x.untyped_storage())
    if held is None:
        return tensor
    return native.take_object(
        (tensor, held),
        tensor.data_ptr,
        tensor.shape,
        tensor.strides,
        tensor._dtype_triple,
        tensor._device_pair,
    )


def hold(storage: Any) -> native.TorchHold | None:
    """Return what a view of a storage on the CPU must hold; None: torch moves it no more.

    The size of the storage must be fixed, and is from then on.
    """
    if storage.is_shared():
        return None
    attributes = storage.__dict__
    if _MEMORY not in attributes:
        with _LOCK:
            if _MEMORY not in attributes:
                for name in _MOVES:
                    attributes[name] = partial(_move, name, ref(storage))
                attributes[_MEMORY] = native.TorchMemory()  # last: the core only looks for it
    return native.torch_hold(storage)


def _move(name: str, storage_of: Any, *args: Any, **kwargs: Any) -> Any:
    storage = storage_of()
    memory = vars(storage)[_MEMORY]
    move = getattr(type(storage), name)
    if not memory.views or storage.is_shared():
        return move(storage, *args, **kwargs)
    memory.before = _cloned(storage)
    try:
        moved = move(storage, *args, **kwargs)
    except BaseException:
        if not storage.is_shared():
            memory.before = None  # so that a write to the storage goes where it went
        raise
    vars(storage)[_MEMORY] = native.TorchMemory()  # the views of before keep the other one
    return moved


def _cloned(storage: Any) -> Any:
    """Return a tensor that shares the memory of a storage until one of both is written or moves."""
    torch: Any = sys.modules["torch"]
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    try:
        return torch._lazy_clone(whole)
    except not_from_handler(AttributeError, RuntimeError) as error:
        # an older torch, and memory of others
        raise ExchangeError(
            "lent",
            "share_memory_: dlbridge has lent the memory of this torch storage, and this torch "
            "would free it under a view when the storage moves to shared memory; drop the views "
            "first, or exchange with copy=True",
        ) from error
