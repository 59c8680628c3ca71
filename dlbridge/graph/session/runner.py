"""Runner: the runs of a session with one set of fetches and feeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.execution.backend import giver
from dlbridge.execution.builder import Runtime
from dlbridge.execution.planner import make_plan
from dlbridge.execution.trace import Trace
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.session import feeds, fetches


class Runner:
    """A plan, with the functions that convert feeds to its inputs and its results to the fetches.

    Attributes:
        call: called with one value for each key of the feed dict.
        plan: the plan that it runs.
    """

    __slots__ = ("call", "feeds", "fetches", "plan")

    def __init__(
        self,
        graph: Graph,
        runtime: Runtime,
        fetch: Any,
        keys: Any,
        as_: str,
        copy: bool,
    ) -> None:
        if not graph.version:
            raise RuntimeError("The Session graph is empty. Add operations to the graph before.")
        self.fetches = fetches.resolve(graph, fetch)
        self.feeds = feeds.resolve(graph, keys)
        self.plan = make_plan(
            runtime,
            self.fetches.tensors,
            self.fetches.targets,
            self.feeds.tensors,
            feeds.feeder,
            giver(as_, copy),
            as_,
            single=self.fetches.build is None,
        )
        self.call = self._over(self.plan.call)

    @property
    def size(self) -> int:
        """About how many nodes the plan has, for the memory that it takes."""
        return sum([max(1, len(step.nodes)) for step in self.plan.steps])

    def traced(self, trace: Trace) -> Callable[..., Any]:
        """Return the call whose steps `trace` records."""
        return self._over(lambda *values: trace.run(self.plan, values))

    def _over(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that runs `program` instead of the plan's own."""
        build, spread = self.fetches.build, self.feeds.spread
        if spread is not None:
            bare = program

            def program(*values: Any) -> Any:
                return bare(*spread(values))

        if build is None:
            return program
        return lambda *values: build(program(*values))
