"""Random numbers."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, require_rank, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import HALF_FIRST, INDEX, REAL, Shapes
from dlbridge.graph.ops.generate.declarations import filled


def _rows(c: Inference) -> Shapes:
    """One row of samples for each row of the input."""
    rows, _ = require_rank(c.dims(0), 2, c)
    return [(rows, c.integer(1))]


_SEEDS = "seed: int = 0, seed2: int = 0"


for _name in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
    define(
        f"{_name}(shape: T, *, {_SEEDS}, dtype: {HALF_FIRST}, T: {INDEX}) -> output: dtype",
        shape=filled,
        stateful=True,
    )


define(
    f"RandomUniformInt(shape: T, minval: Tout, maxval: Tout, *, {_SEEDS}, Tout: {INDEX}, "
    f"T: {INDEX}) -> output: Tout",
    shape=filled,
    stateful=True,
)


define(
    f"RandomShuffle(value: T, *, {_SEEDS}, T: type) -> output: T", shape=unchanged, stateful=True
)


define(
    f"Multinomial(logits: T, num_samples: int32, *, {_SEEDS}, T: {REAL}, "
    f"output_dtype: {INDEX} = int64) -> output: output_dtype",
    shape=_rows,
    stateful=True,
)
