"""The interface between front end and back end: the properties of an operation that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dlbridge.proto.datatypes import DataType


class Output(Protocol):
    """One result of a node, the end of an edge."""

    @property
    def op(self) -> Any:
        """The Node whose result this is."""

    @property
    def value_index(self) -> int:
        """Its position among the node's results."""

    @property
    def dtype(self) -> DataType:
        """Its DataType."""


class Node(Protocol):
    """One operation as the back end sees it; `dlbridge.graph.Operation` is one.

    Attributes:
        id: its number in order of creation, dense from 0.
        name: unique in its graph.
        type: the name of its OpDef, which chooses the kernel.
        attrs: decoded values, defaults filled in; see `dlbridge.proto.attributes`.
        inputs: the edges in, in order.
        outputs: its results, the start of the edges out.
        control_inputs: nodes that must run before.
        output_types: a DataType for each result.
        stateful: whether its runs differ from each other, so that none is left out or merged.
        framework: the name of the framework asked for, or None for the session's.
        device: a canonical device string, or "".
    """

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def inputs(self) -> Sequence[Output]: ...
    @property
    def outputs(self) -> Sequence[Output]: ...
    @property
    def control_inputs(self) -> Sequence[Any]: ...
    @property
    def output_types(self) -> tuple[DataType, ...]: ...
    @property
    def stateful(self) -> bool: ...
    @property
    def framework(self) -> str | None: ...
    @property
    def device(self) -> str: ...
