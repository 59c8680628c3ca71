"""Runtime: what the plans of one session share."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dlbridge.execution.context import Context, namespace
from dlbridge.execution.devices import entered, on_device
from dlbridge.execution.failures import failure
from dlbridge.execution.placement import Place, Placed, make_context
from dlbridge.execution.variables import VariableState


class Runtime:
    """The state of a session and what was made for its nodes: contexts, constants, kernels.

    Attributes:
        framework: where nodes run that ask for none.
        resources: the state of variables, by name.
        seed: of the graph, or None.
        soft: whether a node whose device does not exist runs on the default one.
        compiled: the frameworks whose runs are compiled into one callable.
        announced: nodes whose place was written to standard error; None where none is to be.
    """

    def __init__(
        self,
        framework: str = "numpy",
        seed: int | None = None,
        soft: bool = False,
        compiled: frozenset[str] = frozenset({"jax"}),
        announces: bool = False,
    ) -> None:
        namespace(framework)  # so that an unknown name or a missing package is told at once
        self.framework = framework
        self.seed = seed
        self.soft = soft
        self.compiled = compiled
        self.announced: set[Any] | None = set() if announces else None
        self.resources: dict[str, Any] = {}
        self._contexts: dict[Place, Context] = {}
        self._constants: dict[tuple[Any, Place], Any] = {}
        self._functions: dict[tuple[Any, Place], Callable[..., Any]] = {}

    def release(self) -> None:
        """Forget everything, the state of variables included."""
        for each in self.resources.values():
            if isinstance(each, VariableState):  # there are generators of random numbers, too
                each.release()
        self.resources.clear()
        self._contexts = {}
        self._constants = {}
        self._functions = {}

    def context(self, place: Place) -> Context:
        """Return the context of a place, the same in all plans."""
        found = self._contexts.get(place)
        if found is None:
            made = make_context(place, self.resources, self.seed)
            found = self._contexts.setdefault(place, made)
        return found

    def constant(self, node: Any, place: Place) -> Any:
        """Return the value of a Const at a place; it is converted once."""
        key = node, place
        found = self._constants.get(key)
        if found is None:
            value = node.attrs["value"].array
            if place.framework != "numpy":
                value = self.context(place).asarray(value)
            found = self._constants.setdefault(key, value)
        return found

    def function(self, placed: Placed) -> Callable[..., Any]:
        """Return what computes a node; it is made once, so that random numbers go on.

        Raises:
            OpError: the attributes or dtypes are not possible there.
        """
        key = placed.node, placed.place
        found = self._functions.get(key)
        if found is None:
            context = self.context(placed.place)
            try:
                with entered(context.framework, context.device):
                    made = placed.spec.factory(placed.node, context)
            except Exception as error:
                raise failure(placed.node, error) from error
            made = on_device(context.framework, context.device, made)
            found = self._functions.setdefault(key, made)
        return found

    def step_function(self, placed: Placed) -> Callable[..., Any]:
        """Return what computes a node with the types enabled that it needs.

        A function of the user in JAX sees 64-bit types where its node has some: elsewhere what it
        creates is to be of 32 bits, as it was written for.
        """
        function = self.function(placed)
        if placed.spec.calls_user and not _has_64_bits(placed.node):
            return wide(placed.place.framework, function, enabled=False)
        return wide(placed.place.framework, function)


def _has_64_bits(node: Any) -> bool:
    kinds = [*node.output_types, *(each.dtype for each in node.inputs)]
    return any(kind.real_dtype.name in ("int64", "uint64", "float64") for kind in kinds)


def wide(framework: str, function: Callable[..., Any], enabled: bool = True) -> Callable[..., Any]:
    """Return a function with 64-bit types enabled, which JAX leaves out by default."""
    if framework != "jax":
        return function
    module = import_module("dlbridge.frameworks.jax.graph_values")
    widely: Callable[..., Any] = module.with_64_bits(function, enabled)
    return widely
