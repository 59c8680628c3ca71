"""Runtime: the state that all plans of one session share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.execution.backend import namespace, wide
from dlbridge.execution.context import Context
from dlbridge.execution.devices import device_object, entered, on_device
from dlbridge.execution.errors import failure
from dlbridge.execution.placement import Place, Placed
from dlbridge.execution.variables import VariableState


class Runtime:
    """The state of a session, and contexts, constants and kernels made for its nodes.

    Attributes:
        framework: where nodes run that ask for none.
        resources: the state of variables, by name.
        seed: of the graph, or None.
        soft: whether a node whose device does not exist runs on the default one.
        compiled: the frameworks whose runs are compiled into one callable.
        logged: nodes whose place was logged; None where none is to be.
    """

    def __init__(
        self,
        framework: str = "numpy",
        seed: int | None = None,
        soft: bool = False,
        compiled: frozenset[str] = frozenset({"jax"}),
        log_placement: bool = False,
    ) -> None:
        namespace(framework)  # so that an unknown name or a missing package fails at once
        self.framework = framework
        self.seed = seed
        self.soft = soft
        self.compiled = compiled
        self.logged: set[Any] | None = set() if log_placement else None
        self.resources: dict[str, Any] = {}
        self._contexts: dict[Place, Context] = {}
        self._constants: dict[tuple[Any, Place], Any] = {}
        self._functions: dict[tuple[Any, Place], Callable[..., Any]] = {}

    def release(self) -> None:
        """Release everything, including the state of variables."""
        for each in self.resources.values():
            if isinstance(each, VariableState):  # others are generators of random numbers
                each.release()
        self.resources.clear()
        self._contexts = {}
        self._constants = {}
        self._functions = {}

    def context(self, place: Place) -> Context:
        """Return the context of a place, the same in all plans."""
        found = self._contexts.get(place)
        if found is None:
            framework, name = place
            device = device_object(framework, name)
            made = Context(framework, self.resources, device, self.seed, name)
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
