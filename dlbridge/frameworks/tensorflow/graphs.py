"""Graphs of concrete functions: what they write, and a forward and a backward pass cut out of one.

A graph that computes results and gradients is cut where what depends on the cotangents reads what
does not: these tensors are what the backward pass keeps. What is only another view of an operand,
or follows from shapes, is computed again and not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_SAME = ("Identity", "StopGradient", "PreventGradient")
_RANDOM = re.compile(
    r"(?!Stateless).*(Random|Multinomial|TruncatedNormal|CandidateSampler|NonDeterministicInts)"
    r"|Stateful(Uniform|StandardNormal)|Rng"
)
_WRITES = re.compile(r"Assign|Resource(?!Gather)")


class CutError(Exception):
    """The backward pass reads something that no other framework can keep."""


class Cut:
    """The two parts of a graph of results and gradients.

    Attributes:
        operands, results: the places of those that the backward pass reads.
        forward: a function of the operands; returns the results, and what else is kept.
        backward: a function of what is read, in this order, and the cotangents; returns gradients.
    """

    def __init__(
        self,
        traced: Any,
        count: int,
        size: int,
        unwritten: dict[int, int],
        can_cross: Callable[[Any], bool],
    ) -> None:
        """Cut a graph.

        Args:
            traced: the concrete function of operands and cotangents, with results and gradients.
            count: how many operands there are.
            size: how many results.
            unwritten: places of operands, by the handles of variables that have them as values.
            can_cross: whether another framework has such a tensor.
        """
        self._traced = traced
        graph = traced.graph
        inputs, outputs = graph.inputs, graph.outputs
        captured = len(inputs) - len(traced.captured_inputs)
        self._captures = dict(
            zip([each.name for each in inputs[captured:]], traced.captured_inputs, strict=True)
        )
        self._library = {each.signature.name: each for each in _definition(traced).library.function}
        self._unwritten = {
            name: unwritten[id(handle)]
            for name, handle in self._captures.items()
            if id(handle) in unwritten
        }
        self._places = {each.name: place for place, each in enumerate(inputs[:count])}
        self._can_cross = can_cross
        self._cotangents = [each.name for each in inputs[count:captured]]
        self._moved = _dependents(graph, self._cotangents)
        self._results: dict[str, int] = {}
        for place, each in enumerate(outputs[:size]):
            self._results.setdefault(self._origin(each), place)
        self._read: dict[str, int] = {}  # operands, by the names of tensors with their values
        self._used: dict[str, int] = {}  # results
        self._kept: list[str] = []
        self._constants: dict[str, Any] = {}
        self._inside: set[str] = set()
        self._seen: set[str] = set()
        for each in outputs[size:]:
            self._walk(each)
        self.operands = tuple(dict.fromkeys(self._read.values()))
        self.results = tuple(dict.fromkeys(self._used.values()))
        gradients = [each.name for each in outputs[size:]]
        controls = [each for each in graph.control_outputs if each.name not in self._moved]
        results = [each.name for each in outputs[:size]]
        self._forward = self._reached([*results, *self._kept], controls)
        self._fetched = results, gradients
        self._names = [each.name for each in inputs[:count]]

    def forward(self, *operands: Any) -> list[Any]:
        """Return the results, and what else the backward pass reads."""
        known = {**self._captures, **dict(zip(self._names, operands, strict=True))}
        return _import(self._traced, self._forward, known, [*self._fetched[0], *self._kept])

    def backward(self, *given: Any) -> list[Any]:
        """Return the gradients."""
        left = iter(given)
        operands = {place: next(left) for place in self.operands}
        results = {place: next(left) for place in self.results}
        known: dict[str, Any] = {name: operands[place] for name, place in self._read.items()}
        known |= {name: results[place] for name, place in self._used.items()}
        known |= {name: next(left) for name in self._kept}
        known |= dict(zip(self._cotangents, left, strict=True))
        known |= {name: tf.constant(value) for name, value in self._constants.items()}
        used = {**self._captures, **known}
        return _import(self._traced, self._inside, used, self._fetched[1])

    # ---- the backward pass, from the gradients to what it reads ----

    def _walk(self, tensor: Any) -> None:
        ahead = [tensor]
        while ahead:
            each = ahead.pop()
            if each.name in self._seen:
                continue
            self._seen.add(each.name)
            ahead += self._take(each)

    def _take(self, tensor: Any) -> Iterable[Any]:
        """Decide what becomes of a tensor that the backward pass reads; return what that reads."""
        operation = tensor.op
        if operation.name in self._moved:
            self._inside.add(operation.name)
            return list(operation.inputs)
        if tensor.name in self._cotangents:
            return ()
        origin = self._origin(tensor)
        if origin in self._places:
            self._read[tensor.name] = self._places[origin]
        elif tensor.name in self._captures:
            if tensor.dtype == tf.resource:
                raise CutError
        elif (value := _value(tensor)) is not None:
            self._constants[tensor.name] = value
        elif _follows_from_shapes(operation):
            self._inside.add(operation.name)
            return list(operation.inputs)
        elif origin in self._results:
            self._used[tensor.name] = self._results[origin]
        elif self._can_cross(tensor):
            self._kept.append(tensor.name)
        else:
            raise CutError
        return ()

    def _origin(self, tensor: Any) -> str:
        """Return the name of the tensor whose values a tensor has, or that of an operand."""
        while True:
            source = self._source(tensor)
            if isinstance(source, int):
                names: list[str] = list(self._places)
                return names[source]
            if source is None:
                return str(tensor.name)
            tensor = source

    def _source(self, tensor: Any) -> Any:
        """Return where a tensor's values are from: another, an operand by its place, or None."""
        operation = tensor.op
        if operation.type in _SAME:
            return operation.inputs[0]
        if operation.type == "ReadVariableOp":
            return self._unwritten.get(operation.inputs[0].name)
        if operation.type not in _CALLS:
            return None
        function = self._library.get(operation.get_attr("f").name)
        if function is None:
            return None
        name = function.ret[function.signature.output_arg[tensor.value_index].name]
        nodes = {node.name: node for node in function.node_def}
        arguments = [each.name for each in function.signature.input_arg]
        is_read = False
        while name not in arguments:
            node = nodes[name.partition(":")[0]]
            if node.op not in _SAME and (is_read or node.op != "ReadVariableOp"):
                return None
            is_read = is_read or node.op == "ReadVariableOp"
            name = node.input[0]
        source = operation.inputs[arguments.index(name)]
        if is_read:
            return self._unwritten.get(source.name)
        return None if source.dtype == tf.resource else source

    def _reached(self, names: Iterable[str], controls: Iterable[Any]) -> set[str]:
        """Return the names of all operations that tensors, and these operations, depend on.

        The order of what has effects may put some of it behind the backward pass, for nothing.
        """
        graph = self._traced.graph
        ahead = [graph.get_tensor_by_name(name).op for name in names] + list(controls)
        named = (*self._places, *self._captures, *self._cotangents)
        ends = self._moved | {name.partition(":")[0] for name in named}
        found: set[str] = set()
        while ahead:
            each = ahead.pop()
            if each.name not in found and each.name not in ends:
                found.add(each.name)
                ahead += [tensor.op for tensor in each.inputs]
                ahead += each.control_inputs
        return found


def _dependents(graph: Any, names: Iterable[str]) -> set[str]:
    """Return the names of the operations that depend on tensors."""
    ahead = [graph.get_tensor_by_name(name) for name in names]
    found: set[str] = set()
    while ahead:
        for operation in ahead.pop().consumers():
            if operation.name not in found:
                found.add(operation.name)
                ahead += operation.outputs
    return found


def _value(tensor: Any) -> Any:
    """Return the value of a tensor that is the same in each call, or None."""
    return tf.get_static_value(tensor)


def _follows_from_shapes(operation: Any) -> bool:
    """Return whether to compute something again: it is a view, or follows from shapes."""
    if operation.op_def.is_stateful or not operation.inputs:
        return False
    first = 1 if operation.type in ("Reshape", "ExpandDims", "Squeeze", *_SAME) else 0
    return all(_value(each) is not None for each in list(operation.inputs)[first:])


# ---- parts of a graph ----------------------------------------------------------------------------


def _definition(traced: Any) -> Any:
    return traced.graph.as_graph_def()


def _import(traced: Any, inside: set[str], known: dict[str, Any], fetches: list[str]) -> list[Any]:
    """Compute tensors of a graph by these of its operations, with known tensors for others."""
    whole = _definition(traced)
    part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    used: set[str] = set()
    for node in whole.node:
        if node.name not in inside:
            continue
        made = part.node.add()
        made.CopyFrom(node)
        made.attr.pop("_class", None)  # where it must be: beside one that may be in the other part
        del made.input[:]
        for name in node.input:
            if not name.startswith("^"):
                full = name if ":" in name else f"{name}:0"
                used.add(full)
                made.input.append(full)
            elif name[1:] in inside:
                made.input.append(name)
    graph = tf.compat.v1.get_default_graph()  # that of a function, which captures what is eager
    computed = [name for name in dict.fromkeys(fetches) if name not in known]
    tensors = tf.graph_util.import_graph_def(
        part,
        input_map={name: graph.capture(known[name]) for name in used if name in known},
        return_elements=computed,
    )
    known = {**known, **dict(zip(computed, tensors or (), strict=True))}
    return [known[name] for name in fetches]


# ---- what a graph does besides -------------------------------------------------------------------


def draws_random_numbers(traced: Any) -> bool:
    """Return whether a graph draws random numbers that no operand determines."""
    whole = _definition(traced)
    nodes = [*whole.node, *[node for each in whole.library.function for node in each.node_def]]
    return any(_RANDOM.match(node.op) for node in nodes)


def find_written(traced: Any, *, beyond: int = 0) -> list[Any]:
    """Return the handles of the captured variables that a graph writes.

    Args:
        traced: the concrete function.
        beyond: only those that it writes more often than so.
    """
    whole = _definition(traced)
    library = {each.signature.name: each for each in whole.library.function}
    first = len(traced.graph.inputs) - len(traced.captured_inputs)
    found = []
    for inner, outer in zip(traced.graph.inputs[first:], traced.captured_inputs, strict=True):
        if inner.dtype == tf.resource:
            times = sum(1 for _ in _writers(inner.op.name, whole.node, library))
            if times > beyond:
                found.append(outer)
    return found


def _writers(name: str, nodes: Iterable[Any], library: dict[str, Any]) -> Iterator[Any]:
    """Yield the nodes that write the variable whose handle has this name, at any depth."""
    for node in nodes:
        for place, source in enumerate(node.input):
            if source.partition(":")[0] != name:
                continue
            if _WRITES.match(node.op):
                yield node
            for called in _called(node):
                function = library[called]
                arguments = function.signature.input_arg  # the last of the node's inputs
                offset = place + len(arguments) - _count(node)
                if 0 <= offset < len(arguments):
                    yield from _writers(arguments[offset].name, function.node_def, library)


def _count(node: Any) -> int:
    return sum(1 for name in node.input if not name.startswith("^"))


def _called(node: Any) -> Iterator[str]:
    """Yield the names of the functions that a node calls."""
    for value in node.attr.values():
        for each in (value.func, *value.list.func):
            if each.name:
                yield each.name
