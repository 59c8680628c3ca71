"""Runs in which functions of the user are called side by side, each in a thread of its own.

The config of a session asks for it. All other steps run in the thread of the caller, each as soon
as what it needs is done, and of those that could run the first of the plan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from heapq import heapify, heappop, heappush
from queue import SimpleQueue
from typing import Any


class Schedule:
    """The steps of a plan, each with the steps that must be done before it.

    Attributes:
        steps: Steps of the plan; their numbers of values are used once.
        before: for each step, the numbers of those that it waits for.
        threads: the most functions of the user that are called at the same time.
    """

    def __init__(
        self, steps: Sequence[Any], before: Sequence[Collection[int]], threads: int
    ) -> None:
        self.steps = steps
        self.before = before
        self.threads = threads
        self.after: list[list[int]] = [[] for _ in steps]
        for number, needed in enumerate(before):
            for each in needed:
                self.after[each].append(number)

    def call(
        self,
        values: dict[int, Any],
        outputs: Sequence[int],
        guarded: Callable[[Callable[..., Any]], Callable[..., Any]],
        explain: Callable[[int, Exception], Exception],
    ) -> tuple[Any, ...]:
        """Run the steps, and return the values of `outputs`.

        Args:
            values: constants, and what is fed, by their numbers.
            outputs: numbers of values.
            guarded: returns a function that calls another within the plan's guards.
            explain: makes the error to raise where a step fails.

        Raises:
            BaseException: what a step raised. Functions that were begun go on; what they return is
                dropped, and no other is begun.
        """
        run = _Run(self, values, guarded)
        for number in run.finished():
            error = run.errors.get(number)
            if isinstance(error, Exception):
                explained = explain(number, error)
                raise explained from (None if explained is error else error)
            if error is not None:
                raise error
        return tuple([values[each] for each in outputs])


class _Run:
    """One call of a Schedule."""

    def __init__(
        self,
        schedule: Schedule,
        values: dict[int, Any],
        guarded: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self.schedule = schedule
        self.values = values
        self.guarded = guarded
        self.errors: dict[int, BaseException] = {}
        self.done: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self.waits = [len(each) for each in schedule.before]
        self.ready: dict[bool, list[int]] = {True: [], False: []}  # by whether in a thread
        for number, count in enumerate(self.waits):
            if not count:
                self.ready[self._is_threaded(number)].append(number)
        for each in self.ready.values():
            heapify(each)

    def _is_threaded(self, number: int) -> bool:
        step = self.schedule.steps[number]
        return bool(step.calls_user) and step.framework == "numpy"  # which has no streams

    def finished(self) -> Any:
        """Yield the number of each step when it has run or failed."""
        running, left = 0, len(self.waits)
        while left:
            while self.ready[True] and running < self.schedule.threads:
                self._begin(heappop(self.ready[True]))
                running += 1
            if self.ready[False] and self.done.empty():
                number = heappop(self.ready[False])
                self._leave(*self._compute(number, self._function(number)))
            else:
                number, result, error = self.done.get()
                running -= 1
                self._leave(number, result, error)
            left -= 1
            yield number

    def _function(self, number: int) -> Callable[..., Any]:
        function: Callable[..., Any] | None = self.schedule.steps[number].function
        assert function is not None
        return function

    def _begin(self, number: int) -> None:
        """Call a function in a thread; a process may end while it is still waiting."""
        function, context = self.guarded(self._function(number)), copy_context()

        def work() -> None:
            self.done.put(context.run(self._compute, number, function))

        threading.Thread(target=work, name="dlbridge py_func", daemon=True).start()

    def _compute(
        self, number: int, function: Callable[..., Any]
    ) -> tuple[int, Any, BaseException | None]:
        inputs = self.schedule.steps[number].inputs
        try:
            return number, self._spread(number, function(*[self.values[i] for i in inputs])), None
        except BaseException as error:  # noqa: BLE001  (raised again by the caller)
            return number, None, error

    def _spread(self, number: int, result: Any) -> Mapping[int, Any]:
        outputs = self.schedule.steps[number].outputs
        if not isinstance(outputs, tuple):
            return {outputs: result}
        return dict(zip(outputs, result or (), strict=True))

    def _leave(self, number: int, results: Any, error: BaseException | None) -> None:
        """Keep what a step returned, and find the steps that can run now."""
        if error is not None:
            self.errors[number] = error
            return
        self.values.update(results)
        for each in self.schedule.after[number]:
            self.waits[each] -= 1
            if not self.waits[each]:
                heappush(self.ready[self._is_threaded(each)], each)
