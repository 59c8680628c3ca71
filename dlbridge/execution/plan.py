"""A first plan: the nodes that the fetches need, run one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dlbridge import adapter
from dlbridge.execution.context import Context
from dlbridge.execution.registry import find


def run(
    fetches: Sequence[Any],
    targets: Sequence[Any],
    feeds: Mapping[Any, Any],
    framework: str,
    resources: dict[str, Any],
) -> list[Any]:
    """Return the values of the outputs `fetches`, after running the nodes `targets`, too."""
    contexts: dict[str, Context] = {}
    values: dict[Any, Any] = dict(feeds)
    for node in _order(fetches, targets, feeds):
        spec = find(node, node.framework or framework)
        place = node.framework or framework
        if spec.only and place not in spec.only:
            place = spec.only[0]
        context = contexts.get(place)
        if context is None:
            context = contexts[place] = Context(place, resources)
        count = len(node.inputs)
        host = {i % count for i in spec.host} if count else set()
        arguments = [
            _pass(values[each], each, i in spec.handles, "numpy" if i in host else place)
            for i, each in enumerate(node.inputs)
        ]
        results = spec.factory(node, context)(*arguments)
        if len(node.output_types) == 1:
            results = (results,)
        for output, value in zip(node.outputs, results, strict=True):
            values.setdefault(output, value)
    return [_pass(values[each], each, False, framework) for each in fetches]


def _pass(value: Any, output: Any, takes_reference: bool, framework: str) -> Any:
    if output.dtype.is_ref:
        return value if takes_reference else value.read(framework)
    return value if output.dtype.name == "resource" else _move(value, framework)


def _move(value: Any, framework: str) -> Any:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if framework == "jax" and isinstance(value, np.ndarray):
        import importlib

        return importlib.import_module("jax.numpy").asarray(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return value
    return adapter.converter(framework)(value, readonly="share")


def _order(fetches: Sequence[Any], targets: Sequence[Any], feeds: Mapping[Any, Any]) -> list[Any]:
    """Return the nodes to run, producers first."""
    found: set[Any] = set()
    stack = [each.op for each in fetches if each not in feeds] + list(targets)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        stack += [each.op for each in node.inputs if each not in feeds]
        stack += node.control_inputs
    return sorted(found, key=lambda node: node.id)
