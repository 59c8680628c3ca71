"""torch.vmap of an operator, by the kernel's `batch=`; what transforms of torch.func refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dlbridge.errors import KernelError
from dlbridge.frameworks.torch import fake as torch_fake
from dlbridge.frameworks.torch.registry import add_rules, current, overload_name

if TYPE_CHECKING:
    from dlbridge.frameworks.torch.operator import Operator
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema.parts import Parameter, Result


class Batch:
    """A call over a batch: batched tensors have the batch in front, the others are shared."""

    __slots__ = ("is_batched", "kernel", "operator", "scalars", "size", "tensors")

    def __init__(self, name: str, size: int, in_dims: Any, args: Any, kwargs: Any) -> None:
        self.operator, self.kernel = current(name)
        tensors, self.scalars, _ = self.operator.unpack(False, args, kwargs)
        # Operators have all tensors by position, as torch batches nothing else.
        by_place = dict(zip((part.name for part in self.operator.layout.parameters), in_dims))  # noqa: B905
        dims = [by_place.get(part.name) for part in self.operator.schema.tensors]
        self.size = size
        self.is_batched = tuple(dim is not None for dim in dims)
        self.tensors = [
            each if dim is None else each.movedim(dim, 0)
            for each, dim in zip(tensors, dims, strict=True)
        ]

    def run(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Call the operator."""
        args, kwargs = self.operator.pack(tensors, self.scalars)
        found = self.operator.default(*args, **kwargs)
        return found if isinstance(found, tuple) else (found,)


def sequential(batch: Batch) -> tuple[Any, ...]:
    """Call the kernel once for each element of the batch."""
    if batch.size == 0:
        return _empty(batch)
    columns = [
        each.unbind(0) if is_batched else [each] * batch.size
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    rows = [batch.run(row) for row in zip(*columns, strict=True)]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _empty(batch: Batch) -> tuple[Any, ...]:
    shared = [
        each.new_empty(each.shape[1:]) if is_batched else each
        for each, is_batched in zip(batch.tensors, batch.is_batched, strict=True)
    ]
    device = next((each.device for each in shared if each is not None), None)
    return tuple(
        torch.empty((0, *shape), dtype=dtype.to("torch"), device=device)
        for shape, dtype in torch_fake.check(batch.operator.schema, shared, batch.scalars, None)
    )


def broadcast(batch: Batch) -> tuple[Any, ...]:
    """Call the kernel once: the batch is one more leading dimension of what has a pack in front."""
    schema = batch.operator.schema
    pairs = list(zip(schema.tensors, batch.is_batched, strict=True))
    fits = all(_has_room(part) for part, is_batched in pairs if is_batched)
    if not (fits and all(_has_room(result) for result in schema.results)):
        return sequential(batch)
    tensors = [
        each.expand(batch.size, *each.shape)
        if each is not None and _has_room(part) and not is_batched
        else each
        for each, (part, is_batched) in zip(batch.tensors, pairs, strict=True)
    ]
    return batch.run(tensors)


def _has_room(part: Parameter | Result) -> bool:
    return bool(part.dims) and part.dims[0].kind == "pack"


def called(batch: Batch) -> tuple[Any, ...]:
    """Have the rule that the kernel was wrapped with compute the batch."""
    kernel: Kernel = batch.kernel
    assert callable(kernel.batch)
    names = [part.name for part in batch.operator.schema.scalars]
    scalars = dict(zip(names, batch.scalars, strict=True))
    found = kernel.batch(batch.size, batch.is_batched, *batch.tensors, **scalars)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


_WAYS: dict[str, Callable[[Batch], tuple[Any, ...]]] = {
    "sequential": sequential,
    "broadcast": broadcast,
}


def batching_rule(name: str) -> Callable[..., Any]:
    """Return the vmap rule of the functional operator of a name."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        batch = Batch(name, info.batch_size, in_dims, args, kwargs)
        way = batch.kernel.batch
        found = called(batch) if callable(way) else _WAYS[way](batch)
        if len(found) == 1:
            return found[0], 0
        return found, (0,) * len(found)

    return rule


def refusal(name: str) -> Callable[..., Any]:
    """Return what stands in the way of torch.func for an operator that writes."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise KernelError(
            f"{name}: a call that writes into its arguments has no meaning within torch.vmap, "
            "torch.func.grad and the like; leave out= away, or use a kernel that returns results"
        )

    return refuse


@add_rules
def _register(operator: Operator, library: Any, is_out: bool) -> None:
    if is_out or operator.schema.mutated:
        name = overload_name(operator.schema.name, is_out)
        library.impl(name, refusal(operator.name), "FuncTorchDynamicLayerFrontMode")
    else:
        torch.library.register_vmap(operator.name, batching_rule(operator.name), lib=library)
