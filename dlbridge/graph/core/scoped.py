"""What a graph gives new operations by `with` blocks: names, devices, what they wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from dlbridge.execution.backend import FRAMEWORKS
from dlbridge.graph.core import names, scopes
from dlbridge.graph.core.scopes import Block, DeviceFunction, Scopes


class Scoped:
    """The names of a graph that are taken, and the scopes of each thread in it."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, int] = {}  # lower-case full name -> next suffix
        self._scopes = Scopes()
        self._lock = threading.RLock()

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True
    ) -> Any:
        """Return the Tensor or Operation that `obj` is, or names; see `Graph`."""
        raise NotImplementedError

    # ---- names ----

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Return `name` in the current scope, with a suffix if it is taken, and take it.

        Names that differ in upper and lower case only are the same; operations and scopes share
        the names.

        Args:
            name: without the scope.
            mark_as_used: False only tells which name would be given.
        """
        scope = self._scopes.state.name
        return self._unique(f"{scope}/{name}" if scope else name, mark_as_used)

    def _unique(self, name: str, mark_as_used: bool = True) -> str:
        """Return a full name with a suffix if it is taken."""
        base = name.lower()
        taken = self._names
        with self._lock:
            count = taken.get(base, 0)
            if not count:
                if mark_as_used:
                    taken[base] = 1
                return name
            while (key := f"{base}_{count}") in taken:
                count += 1
            if mark_as_used:
                taken[base] = count + 1
                taken[key] = 1
        return f"{name}_{count}"

    def operation_name(self, name: str) -> str:
        """Return the full name of a new operation; one with a trailing slash is taken as it is.

        Raises:
            ValueError: characters that no name has.
        """
        scope = self._scopes.state.name
        if name not in names.CHECKED:
            names.check(name, scope, "the name of an operation")
        if name[-1] == "/":
            full = name[:-1]
            if full not in names.CHECKED:
                names.check(full, "", "the name of an operation")
            return full
        if scope and scope[0] in names.NESTED_ONLY:  # entered by its full name within another
            names.check(scope, "", "the scope of an operation")
        return self._unique(f"{scope}/{name}" if scope else name)

    def name_scope(self, name: str | None) -> Block:
        """Return a block in which new operations are named under `name`.

        It returns the full name with a slash at the end. A name with a slash at the end is such a
        full name, entered again as it is; None and "" are the root. Any other is made unique.
        """
        return scopes.name_scope(self, name)

    def get_name_scope(self) -> str:
        """Return the current scope, without a slash at the end; "" at the root."""
        return self._scopes.state.name

    # ---- where operations go ----

    def framework(self, name: str | None) -> Block:
        """Return a block whose operations run in a framework; None is that of the session.

        Raises:
            ValueError: no framework that runs nodes.
        """
        if name is not None and name not in FRAMEWORKS:
            raise ValueError(
                f"framework: {name!r} runs no nodes; known are {', '.join(FRAMEWORKS)}, and None"
            )
        return Block(self._scopes, lambda scope: scope.but(framework=name))

    def device(self, device_name_or_function: str | DeviceFunction | None) -> Block:
        """Return a block whose operations are placed on a device.

        Args:
            device_name_or_function: a device string, whose parts count before those of outer
                blocks; a function from Operation to such a string, which sees the device that
                inner blocks gave and replaces it; None, which forgets outer blocks.

        Raises:
            ValueError: no device string.
        """
        return scopes.device(self, device_name_or_function)

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Block:
        """Return a block whose operations are placed where `op` is, and name it in `_class`."""
        found: Any = None if op is None else self.as_graph_element(op)
        return scopes.colocate(self, getattr(found, "op", found), ignore_existing)

    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Block:
        """Return a block whose operations run after all of `control_inputs`.

        Args:
            control_inputs: Operations, Tensors, Variables or names; None forgets outer blocks.

        Raises:
            TypeError: something else.
            ValueError: from another graph.
        """
        return scopes.control_dependencies(self, control_inputs)
