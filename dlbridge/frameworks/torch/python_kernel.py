"""Python functions of torch tensors as kernels: what the calls need of torch."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from dlbridge._core import native
from dlbridge.exchange import exchange
from dlbridge.kernels.kinds.python_kernel import LEGACY, Support


class TorchSupport(Support):
    """Tensors of torch, which counts versions and cannot protect memory."""

    protects = False
    counts_versions = True

    def save(self, tensor: Any, address: int) -> None:
        """Move the storage into memory of its own: all views of it move along."""
        for found in _tensors_over(address, tensor):
            storage = found.untyped_storage()
            if storage.device.type == "cpu":
                storage.share_memory_()  # no other call replaces a storage's memory
                return
            # On a device each of the tensors gets its place in a copy of the storage.
            place = found.storage_offset(), found.size(), found.stride()
            found.data = torch.empty(0, dtype=found.dtype, device=found.device).set_(
                storage.clone(), *place
            )

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        yield from super().contexts(kind, index, stream)
        yield torch.cuda.device(index)
        if (torch.cuda.current_stream(index).cuda_stream or LEGACY) == (stream or LEGACY):
            return
        is_default = stream in (0, LEGACY)
        own = (
            torch.cuda.default_stream if is_default else partial(torch.cuda.ExternalStream, stream)
        )
        yield torch.cuda.stream(own(index))

    def copy(self, destination: native.TensorBase, value: Any, stream: int) -> None:
        if isinstance(value, torch.Tensor):
            exchange.convert(destination, "torch").copy_(value.detach())
        else:
            super().copy(destination, value, stream)


def _tensors_over(address: int, tensor: Any) -> Iterator[Any]:
    """Yield tensors whose storage starts at `address`."""
    for found in [tensor] if tensor is not None else gc.get_objects():
        if not isinstance(found, torch.Tensor) or found.layout is not torch.strided:
            continue
        try:
            is_over_it = found.untyped_storage().data_ptr() == address
        except RuntimeError:  # fake, functorch and the like: no storage
            continue
        if is_over_it:
            yield found


SUPPORT = TorchSupport
