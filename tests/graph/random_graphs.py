"""Random graphs: lists of steps that TensorFlow and dlbridge both can carry out.

A graph is drawn with a `random.Random`, which hypothesis provides, so that a failure shrinks. Each
row of `STEPS` draws one operation whose inputs fit: it looks at the shapes that the values will
have, while the static shapes of placeholders leave some of them open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Input = int | list[int]


@dataclass
class Step:
    """One operation: its inputs are numbers of values, one entry for each argument."""

    op: str
    name: str
    inputs: list[Input] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    control: list[int] = field(default_factory=list)


@dataclass
class Value:
    """One result: number of its step, position among its results, and what is fed or computed."""

    step: int
    index: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Plan:
    """A whole graph."""

    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    feeds: dict[int, np.ndarray] = field(default_factory=dict)


FLOATS = ("float32", "float64")
INTEGERS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTEGERS)
SCOPES = ("", "", "a/", "a/b/", "Scope_1/", "x.y-z/")


class Drawing:
    """A graph while it is drawn."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.plan = Plan()

    def add(
        self,
        op: str,
        inputs: list[Input],
        results: Sequence[tuple[str, tuple[int, ...]]],
        **attrs: Any,
    ) -> list[int]:
        """Add an operation; return the numbers of its results, given by dtype and shape."""
        plan, number = self.plan, len(self.plan.steps)
        scope = self.random.choice(SCOPES)
        step = Step(op, f"{scope}{op}_{number}", inputs, attrs)
        earlier = [i for i, each in enumerate(plan.steps) if each.op != "Placeholder"]
        if earlier and self.random.random() < 0.15:
            step.control = [self.random.choice(earlier)]
        plan.steps.append(step)
        first = len(plan.values)
        plan.values += [Value(number, i, kind, shape) for i, (kind, shape) in enumerate(results)]
        return list(range(first, len(plan.values)))

    def constant(self, array: Any, dtype: str) -> int:
        """Add a constant."""
        value = np.asarray(array, dtype)
        return self.add("Const", [], [(dtype, value.shape)], value=value, dtype=dtype)[0]

    def integers(self, values: Any) -> int:
        """Add a constant of int32 or int64, such as a shape or axes."""
        return self.constant(values, self.random.choice(INTEGERS))

    def placeholder(self, dtype: str) -> int:
        """Add a placeholder, of which the static shape may leave extents open."""
        rank = self.random.randrange(4)
        shape = tuple(self.random.choices((0, 1, 2, 3, 4), (1, 4, 8, 8, 4), k=rank))
        static: Any = [None if self.random.random() < 0.3 else extent for extent in shape]
        if self.random.random() < 0.1:
            static = None
        number = self.add("Placeholder", [], [(dtype, shape)], dtype=dtype, shape=static)[0]
        self.plan.feeds[number] = self.array(dtype, shape)
        return number

    def array(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return values that no operation here makes huge."""
        count = int(np.prod(shape))
        numbers = [self.random.randint(-4, 4) / (1 if "int" in dtype else 4) for _ in range(count)]
        return np.array(numbers, dtype).reshape(shape)

    def pick(self, dtypes: Sequence[str] = NUMBERS, rank: int = 0) -> int | None:
        """Return the number of a value of one of these dtypes and at least this rank."""
        values = self.plan.values
        fit = [i for i, v in enumerate(values) if v.dtype in dtypes and len(v.shape) >= rank]
        return self.random.choice(fit) if fit else None

    def pick_like(self, other: int) -> int:
        """Return a value of the same dtype and shape, maybe the same one."""
        a = self.plan.values[other]
        fit = [
            i for i, v in enumerate(self.plan.values) if (v.dtype, v.shape) == (a.dtype, a.shape)
        ]
        return self.random.choice(fit)

    def shape(self, number: int) -> tuple[int, ...]:
        return self.plan.values[number].shape

    def dtype(self, number: int) -> str:
        return self.plan.values[number].dtype


# ---- carrying it out ---------------------------------------------------------------------------


def build(plan: Plan, graph: Any, make: Callable[[Step, list[Any]], Any]) -> list[Any]:
    """Carry out the steps in a graph; return the tensor of each value."""
    tensors: list[Any] = []
    operations: list[Any] = []
    for step in plan.steps:
        inputs = [
            [tensors[i] for i in each] if isinstance(each, list) else tensors[each]
            for each in step.inputs
        ]
        with graph.control_dependencies([operations[i] for i in step.control]):
            op = make(step, inputs)
        operations.append(op)
        tensors += op.outputs
    return tensors
