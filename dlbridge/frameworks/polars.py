"""polars: a Series out, of numbers or of arrays of one shape; a DataFrame by columns."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from dlbridge.errors import ExchangeError
from dlbridge.exchange.adapter import Holder
from dlbridge.exchange.context import ExchangeContext, Policy

_NUMBERS = frozenset(
    (
        *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
        *("Float16", "Float32", "Float64"),
    )
)
# What to do about a dtype that is no number, by its name.
_ADVICE = {
    "Boolean": "bits; pass x.cast(polars.UInt8)",
    "List": "lists; pass x.list.to_array(n) if all have n items",
    "Struct": "several columns; pass x.struct.unnest() to convert_tree",
    **dict.fromkeys(
        ("Categorical", "Date", "Datetime", "Duration", "Enum", "Time"),
        "no plain numbers; pass x.to_physical()",
    ),
}


class Polars(Holder):
    """polars.Series without nulls; copied when in several chunks."""

    name = "polars"

    def recognises(self, cls: type) -> bool:
        polars = sys.modules.get("polars")
        return polars is not None and issubclass(cls, getattr(polars, "Series", ()))

    def held(self, x: Any, policy: Policy, context: ExchangeContext) -> Any:
        """Return a read-only array of NumPy over the memory."""
        kind = x.dtype
        while kind.base_type().__name__ == "Array":
            kind = kind.inner
        if kind.base_type().__name__ not in _NUMBERS:
            _refuse_dtype(x, kind.base_type().__name__)
        nulls = x.null_count()
        if not nulls and kind != x.dtype and len(x):
            nulls = x.reshape((-1,)).null_count()
        if nulls:
            raise ExchangeError(
                "masked",
                f"from_dlpack: {nulls} nulls of the polars.Series would be lost; pass "
                "x.fill_null(value)",
            )
        if x.n_chunks() > 1:
            if policy.copy is False:
                raise ExchangeError(
                    "copy_required",
                    f"from_dlpack: a polars.Series of {x.n_chunks()} chunks is not a single piece "
                    "of memory; exchange x.get_chunks() one by one, or allow a copy with copy=None",
                )
            x = context.copying("polars", "copy_required", x.rechunk)
        context.route.append("polars to_numpy")
        return x.to_numpy(allow_copy=False)

    def columns(self, x: Any) -> list[tuple[str, Any]] | None:
        frames: Any = getattr(sys.modules.get("polars"), "DataFrame", ())
        if not isinstance(x, frames):
            return None
        return [(each.name, each) for each in x.get_columns()]


def _refuse_dtype(x: Any, name: str) -> NoReturn:
    advice = _ADVICE.get(name, "no numbers; cast it, or leave it out")
    raise ExchangeError("dtype", f"from_dlpack: a polars.Series of {x.dtype} holds {advice}")


HOLDER = Polars()
