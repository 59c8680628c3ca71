"""torch.autocast: what a kernel's `autocast=` does to the tensors of a call.

The rule stands at the dispatcher's autocast keys, above autograd, which records the casts:
gradients come back with the dtypes that the arguments had. Below it autocast is off, as for torch's
own functions, and compiled and exported graphs have the casts as nodes. Batching rules, which stand
above these keys, and functions of torch that are called as they are, apply it themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import _C

from dlbridge.dtype import DType
from dlbridge.errors import UnsupportedTypeError
from dlbridge.kernels.autocast import CAST, LOWER, PROMOTE, accepted
from dlbridge.kernels.schema import (
    SEVERAL,
    Described,
    Parameter,
    Schema,
    refusal,
    short_name,
)

KEYS = ("AutocastCPU", "AutocastCUDA")
_KEY_SET = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU) | _C.DispatchKeySet(
    _C.DispatchKey.AutocastCUDA
)
_DEVICES = ("cpu", "cuda")
_ELIGIBLE = tuple(DType(name).to("torch") for name in CAST)


class Casts:
    """The rule of one kernel.

    Attributes:
        rule: as `wrap` has it.
        kernel: its name.
        ways: of each tensor argument, whether it takes part: True; the dtype that it is always
            cast to; or None where it is left alone.
        written: for each, whether the kernel writes it.
        names: of the arguments.
    """

    def __init__(self, schema: Schema, rule: str) -> None:
        self.kernel = schema.qualified
        self.rule = rule
        self.target = None if rule in (LOWER, PROMOTE) else DType(rule).to("torch")
        self.names = tuple([part.name for part in schema.tensors])
        self.written = tuple([part.mutated for part in schema.tensors])
        self.ways = tuple([_way(schema, part) for part in schema.tensors])

    def apply(self, tensors: Sequence[Any]) -> list[Any] | None:
        """Return the tensors of a call as the kernel gets them; None where autocast is off.

        Raises:
            UnsupportedTypeError: the kernel writes a tensor that would be cast.
        """
        device = _device(tensors)
        if device is None or not torch.is_autocast_enabled(device):
            return None
        target = self._find_target(device, tensors)
        found = []
        for place, given in enumerate(tensors):
            way = self.ways[place]
            dtype = target if way is True else way
            if self.written[place]:
                if way is True and dtype is not None:
                    self._refuse_written(self.names[place], given, dtype)
                found.append(given)
            elif isinstance(given, SEVERAL):
                found.append([_cast(each, dtype, device) for each in given])
            else:
                found.append(_cast(given, dtype, device))
        return found

    def turned_off(self, tensors: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a block without autocast on the device of the tensors, which dynamo traces."""
        block: AbstractContextManager[Any] = torch.autocast(
            _device(tensors) or "cpu", enabled=False
        )
        return block

    def _find_target(self, device: str, tensors: Sequence[Any]) -> Any:
        if self.rule == LOWER:
            return torch.get_autocast_dtype(device)
        if self.rule != PROMOTE:
            return self.target
        widest = None
        for way, given in zip(self.ways, tensors):  # noqa: B905  (see bind._assign)
            if way is not True:
                continue
            for each in given if isinstance(given, SEVERAL) else (given,):
                if _is_eligible(each, device):
                    same = widest is None or widest == each.dtype
                    widest = each.dtype if same else torch.float32
        return widest

    def _refuse_written(self, name: str, given: Any, dtype: Any) -> None:
        several = given if isinstance(given, SEVERAL) else (given,)
        for each in several:
            if each is None or each.dtype == dtype or each.dtype not in _ELIGIBLE:
                continue
            described = Described(
                tuple(each.shape), DType(each.dtype), "torch.Tensor", str(each.device)
            )
            raise UnsupportedTypeError(
                refusal(
                    self.kernel, name,
                    f"{short_name(DType(dtype))} within torch.autocast (autocast={self.rule!r})",
                    described.text(),
                    "the kernel writes it, and a cast would be a copy; pass it with that dtype, or "
                    "call the kernel in torch.autocast(..., enabled=False)",
                )
            )  # fmt: skip


def _way(schema: Schema, part: Parameter) -> Any:
    taken = accepted(schema, part)
    if len(taken) == 1:
        return DType(taken[0]).to("torch")
    return True if taken else None


def _device(tensors: Sequence[Any]) -> str | None:
    """Return the device of the first tensor, if it has autocast."""
    for given in tensors:
        for each in given if isinstance(given, SEVERAL) else (given,):
            if each is not None:
                kind: str = each.device.type
                return kind if kind in _DEVICES else None
    return None


def _is_eligible(tensor: Any, device: str) -> bool:
    """Return whether autocast casts a tensor."""
    return tensor is not None and tensor.dtype in _ELIGIBLE and tensor.device.type == device


def _cast(tensor: Any, dtype: Any, device: str) -> Any:
    if dtype is None or not _is_eligible(tensor, device):
        return tensor
    return tensor.to(dtype)


def below() -> AbstractContextManager[Any]:
    """Return a block below the dispatcher's autocast keys."""
    block: AbstractContextManager[Any] = _C._ExcludeDispatchKeyGuard(_KEY_SET)
    return block
