"""Where each node of a plan runs: its framework, its device, its kernel."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from dlbridge.execution.backend import HOST_NAME, backend, choose, devices, has_devices, place_name
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Spec, find
from dlbridge.execution.variables import is_handle
from dlbridge.proto.datatypes import DataType


class Place(NamedTuple):
    """A framework and the name of one of its devices; "" is the host."""

    framework: str
    device: str = ""

    def __str__(self) -> str:
        return f"{self.framework} {self.device}".rstrip()


HOST = Place("numpy")
ANYWHERE = Place("")
"""Where a value is whose framework is known only when it is there: what was fed."""


class Placed(NamedTuple):
    """A node, where it runs, and how.

    Attributes:
        node: of the graph.
        place: where its kernel runs.
        spec: its kernel.
        host: which of its inputs the kernel takes as NumPy arrays in host memory.
        result: where its results are.
        inputs: the outputs that it takes; of what only forwards its input, that input.
        on_host: whether it computes shapes or axes on the host, where they are needed.
        is_no_op: whether nothing runs for it: it is a constant, or forwards its input.
    """

    node: Any
    place: Place
    spec: Spec
    host: frozenset[int]
    result: Place
    inputs: tuple[Any, ...]
    on_host: bool = False
    is_no_op: bool = False


def place_all(
    order: Sequence[Any], fed: Collection[Any], framework: str, soft: bool = False
) -> list[Placed]:
    """Return where each node runs.

    Args:
        order: the nodes, each after those that it needs.
        fed: outputs whose values come from outside.
        framework: where nodes run that ask for none.
        soft: whether a node whose device does not exist runs on the default one.

    Raises:
        InvalidArgumentError: a device does not exist.
        UnimplementedError: there is no kernel.
    """
    found = [_place(node, framework, soft) for node in order]
    if framework == "numpy" and all(each.place == HOST for each in found):
        return found
    wanted = _wanted_on_host(found)
    known: set[Any] = {each for each in fed if _is_index(each.dtype)}
    return [_place_on_host(each, wanted, known) for each in found]


def _place(node: Any, framework: str, soft: bool) -> Placed:
    asked = node.framework or framework
    spec = find(node, asked)
    if (spec.only and asked not in spec.only) or _has_no_array(node, asked):
        asked = spec.only[0] if spec.only else "numpy"
        spec = find(node, asked)
        place = _place_in(node, asked, soft)
    else:
        place = _place_in(node, asked, soft) or _place_in_twin(node, asked)
    if place is None:
        if not soft:
            raise _no_device(node, asked)
        place = Place(asked, place_name(asked, ""))
    if place.framework != asked:
        spec = find(node, place.framework)
    host, result = _host_inputs(node, spec), HOST if spec.host_result else place
    return Placed(node, place, spec, host, result, node.inputs)


def _place_in(node: Any, framework: str, soft: bool) -> Place | None:
    """Return the place in a framework that a node asks for, or None: there is no such device."""
    if soft and not has_devices(framework):  # CuPy without a GPU
        return HOST
    device = choose(node.device, framework) if node.device else ""
    return None if device is None else Place(framework, place_name(framework, device))


def _place_in_twin(node: Any, framework: str) -> Place | None:
    twin = backend(framework).twin
    if twin is None or _has_no_array(node, twin) or not has_devices(twin):
        return None
    device = choose(node.device, twin)
    return Place(twin, place_name(twin, device)) if device else None


def _host_inputs(node: Any, spec: Spec) -> frozenset[int]:
    if not spec.host:
        return frozenset()
    count = len(node.inputs)
    return frozenset([i % count for i in spec.host if -count <= i < count])


def _has_no_array(node: Any, framework: str) -> bool:
    """Return whether a value of a node is of a dtype that NumPy alone has: strings, quantised."""
    lacking = backend(framework).lacking
    return any(
        kind.kind in "qs" or kind.base_dtype.name in lacking
        for kind in (*node.output_types, *(each.dtype for each in node.inputs))
    )


def _no_device(node: Any, framework: str) -> InvalidArgumentError:
    there = ", ".join(f"/device:{name}" for name in devices(framework)) or "none"
    return InvalidArgumentError(
        f"Cannot assign a device for operation {node.name}: it was explicitly assigned to "
        f"{node.device}, and {framework} has here, as /job:localhost/replica:0/task:0, these "
        f"devices: {there}. Change the device, or place the node on another framework",
        node,
    )


# ---- arithmetic of shapes ----------------------------------------------------------------------


def _is_index(kind: DataType) -> bool:
    return kind.is_integer or kind.is_bool


def _wanted_on_host(found: Sequence[Placed]) -> set[Any]:
    """Return the nodes of which a result leads, through others of them, to an input on the host."""
    wanted: set[Any] = set()
    for placed in reversed(found):
        everything = placed.node in wanted
        for i, each in enumerate(placed.node.inputs):
            if (everything or i in placed.host) and _is_index(each.dtype):
                wanted.add(each.op)
    return wanted


def _place_on_host(placed: Placed, wanted: set[Any], known: set[Any]) -> Placed:
    """Move a node to the host whose inputs are known there and whose result is needed there.

    So shapes that are computed from shapes never go to a device and back, and are constants where
    JAX compiles.
    """
    node = placed.node
    if placed.result == HOST or node.type == "Const":
        known.update(node.outputs)
        return placed
    if (
        node not in wanted
        or node.framework is not None
        or node.stateful
        or not node.inputs
        or (placed.spec.only and "numpy" not in placed.spec.only)
        or not all(_is_index(kind) for kind in node.output_types)
        or not all(each in known for each in node.inputs)
    ):
        return placed
    known.update(node.outputs)
    spec = find(node, "numpy")
    host = _host_inputs(node, spec)
    return Placed(node, HOST, spec, host, HOST, node.inputs, on_host=True)


# ---- no-ops ------------------------------------------------------------------------------------


def skip_no_ops(
    found: Sequence[Placed], fed: Collection[Any]
) -> tuple[list[Placed], dict[Any, Any]]:
    """Mark nodes for which nothing runs, and connect the others around them.

    Returns:
        The nodes, and which output is which other one.
    """
    same: dict[Any, Any] = {}
    nodes = []
    for placed in found:
        node = placed.node
        inputs = tuple([same.get(each, each) for each in node.inputs])
        forwards = placed.spec.forwards and (not is_handle(inputs[0]) or inputs[0] in fed)
        if forwards and node.outputs[0] not in fed:
            same[node.outputs[0]] = inputs[0]
        is_no_op = forwards or (node.type == "Const" and not node.control_inputs)
        nodes.append(placed._replace(inputs=inputs, is_no_op=is_no_op))
    return nodes, same


# ---- log ----------------------------------------------------------------------------------------


def log_placement(found: Sequence[Placed], logged: set[Any]) -> None:
    """Log to standard error where each node runs, once, as TensorFlow does; add to `logged`."""
    for placed in found:
        node, place = placed.node, placed.place
        if node not in logged:
            logged.add(node)
            device = place.device or HOST_NAME
            sys.stderr.write(
                f"{node.name}: ({node.type}): /job:localhost/replica:0/task:0/device:{device} "
                f"in {place.framework}\n"
            )
