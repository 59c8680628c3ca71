"""The collectives as operators of frameworks that trace or differentiate: results and gradients.

An operator is named by its parameters alone (`Parameters`), so that programs can hold them. All of
them but reductions other than sums and means are linear in the tensors of all ranks; their
transposes are collectives again, which all ranks make in the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dlbridge import registry
from dlbridge.errors import ArgumentError
from dlbridge.mpi import collectives, reductions
from dlbridge.mpi.channel import channel
from dlbridge.mpi.values import give, take
from dlbridge.tensor.values import raw_bytes

_COMMUNICATORS: list[Any] = [None]
_NUMBERING = registry.lock()


class Parameters(NamedTuple):
    """The parameters of an operator.

    Attributes:
        name: "allreduce" and so on; "reduce" has zeros on ranks other than the root.
        op: of reductions; of others "", or "mean" where the result is divided by the number of
            ranks, which is the gradient of a mean.
        root: of bcast and reduce, else 0.
        comm: the number of the communicator, see `number_of`.
    """

    name: str
    op: str
    root: int
    comm: int

    @property
    def communicator(self) -> Any:
        """The communicator, None for all processes.

        Raises:
            ArgumentError: this process knows none by that number.
        """
        if not 0 <= self.comm < len(_COMMUNICATORS):
            raise ArgumentError(
                f"{self.name}: comm {self.comm} is the number of a communicator that this process "
                "does not know: the program was made in another one"
            )
        return _COMMUNICATORS[self.comm]


def number_of(comm: Any) -> int:
    """Return the number by which programs know a communicator, which is kept from now on."""
    with _NUMBERING:
        for number, known in enumerate(_COMMUNICATORS):
            if known is comm or (known is not None and comm is not None and known == comm):
                return number
        _COMMUNICATORS.append(comm)
        return len(_COMMUNICATORS) - 1


# torch.compile runs it instead of tracing it: a communicator keeps its number.
number_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def result_shape(shape: tuple[Any, ...], what: Parameters) -> tuple[Any, ...]:
    """Return the shape of a result; what does not fit is refused on all ranks when it runs."""
    if what.name == "allgather":
        return (channel(what.name, what.communicator).size, *shape)
    return shape[1:] if what.name == "reduce_scatter" else shape


def run(x: Any, what: Parameters) -> Any:
    """Make the collective with values, and wait for it."""
    if what.op == "mean" and what.name in ("bcast", "allgather"):
        return _divided(run(x, what._replace(op="")), what)
    comm = what.communicator
    if what.name == "allreduce":
        return collectives.iallreduce(comm, x, what.op, None).wait()
    if what.name == "reduce":
        result = collectives.ireduce(comm, x, what.op, what.root, None).wait()
        return _zeros(x) if result is None else result
    if what.name == "bcast":
        return collectives.ibcast(comm, x, what.root, "numpy", None).wait()
    if what.name == "reduce_scatter":
        return collectives.ireduce_scatter(comm, x, what.op, None).wait()
    begin = collectives.iallgather if what.name == "allgather" else collectives.ialltoall
    return begin(comm, x, None).wait()


def _zeros(x: Any) -> Any:
    source = take("reduce", x)
    made = source.kind.empty()
    np.asarray(raw_bytes(made))[:] = 0
    return give(made, source.framework, source.device)


def _divided(x: Any, what: Parameters) -> Any:
    source = take(what.name, x)
    made = source.tensor.copy()
    dtype = reductions.numpy_dtype(what.name, what.op, source.kind)
    reductions.divide(dtype, made, channel(what.name, what.communicator).size)
    return give(made, source.framework, source.device)


_TRANSPOSES = {
    "allreduce": "allreduce",
    "reduce": "bcast",
    "bcast": "reduce",
    "allgather": "reduce_scatter",
    "reduce_scatter": "allgather",
    "alltoall": "alltoall",
}


def transpose(what: Parameters) -> Parameters:
    """Return the collective that takes the gradients of the results to those of the tensors.

    Raises:
        ArgumentError: it is neither a sum nor a mean.
    """
    if what.op not in ("", "sum", "mean"):
        raise ArgumentError(
            f"{what.name}: {what.op} has no gradient, only sum and mean have; pass a tensor that "
            "requires none (x.detach() in torch, jax.lax.stop_gradient(x) in JAX)"
        )
    name = _TRANSPOSES[what.name]
    if what.op == "mean":
        return what._replace(name=name)
    op = "sum" if name in ("allreduce", "reduce", "reduce_scatter") else ""
    return what._replace(name=name, op=op)
