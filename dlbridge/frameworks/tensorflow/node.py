"""One call of the op, as the rules for gradients and batches find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorflow.python.framework import ops

from dlbridge.frameworks.tensorflow.op import read_scalars

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema.schema import Schema

NAMES = ("kernel", "scalars", "present")  # the attributes that say what was called
_KINDS: dict[str, Any] = {"float": float, "int": int, "bool": bool}


class Node:
    """What one call of the op was.

    Attributes:
        kernel, schema: what was called.
        places: the op's tensors -> their places among the schema's tensors.
        primals: the schema's tensors, None for one that was left out.
        scalars: the schema's scalars; a symbolic one is a tensor.
        results: the results.
    """

    __slots__ = ("kernel", "places", "primals", "results", "scalars", "schema")

    def __init__(
        self, attributes: Mapping[str, str], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        from dlbridge.kernels.kernel import find

        kernel = find(attributes["kernel"])
        assert kernel.schema is not None
        self.kernel: Kernel = kernel
        self.schema: Schema = kernel.schema
        present = attributes["present"] or "1" * len(self.schema.tensors)
        self.places = [index for index, flag in enumerate(present) if flag == "1"]
        self.primals: list[Any] = [None] * len(self.schema.tensors)
        for index, tensor in zip(self.places, inputs, strict=False):
            self.primals[index] = tensor
        self.scalars = self._read_scalars(attributes["scalars"], inputs[len(self.places) :])
        self.results = list(outputs[: len(self.schema.results)])

    def _read_scalars(self, text: str, tensors: Sequence[Any]) -> list[Any]:
        return [
            _KINDS[part.kind](scalar.numpy()) if isinstance(scalar, ops.EagerTensor) else scalar
            for part, scalar in zip(self.schema.scalars, read_scalars(text, tensors), strict=True)
        ]


def read_node(op: Any) -> Node:
    """Return the call that an operation of TensorFlow, or a record of a tape, stands for."""
    return Node({name: op.get_attr(name).decode() for name in NAMES}, op.inputs, op.outputs)
