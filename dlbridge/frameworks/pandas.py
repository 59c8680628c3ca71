"""pandas: a Series, an Index or an extension array out, each a tensor; a DataFrame by columns."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Holder
from dlbridge.exchange.context import ExchangeContext, Policy

_NUMBERS = "biufc"
# What to do about a dtype that is no number, by the class of the dtype.
_ADVICE = {
    "CategoricalDtype": "pass {} for the numbers of the categories",
    "DatetimeTZDtype": 'pass x.astype("int64") for the time since 1970 in its unit',
    "SparseDtype": "pass {}",
    "PeriodDtype": 'pass x.astype("int64") for the number of the period',
}
# Where a Series has these, by the class of the dtype; another array has them itself.
_OF_SERIES = {"CategoricalDtype": ("cat", "codes"), "SparseDtype": ("sparse", "to_dense()")}
_TIMES = 'pass x.astype("int64") for the time in its unit'


class Pandas(Holder):
    """pandas.Series, Index and extension arrays of numbers without missing values."""

    name = "pandas"

    def recognises(self, cls: type) -> bool:
        pandas = sys.modules.get("pandas")
        if pandas is None or not hasattr(pandas, "Series"):
            return False
        kinds = (pandas.Series, pandas.Index, pandas.api.extensions.ExtensionArray)
        return issubclass(cls, kinds) and not issubclass(cls, pandas.MultiIndex)

    def held(self, x: Any, policy: Policy, context: ExchangeContext) -> Any:
        """Return the array behind `x`, of NumPy or Arrow, without a copy."""
        dtype = x.dtype
        is_arrow = hasattr(dtype, "pyarrow_dtype")
        masked = getattr(dtype, "numpy_dtype", None)  # Int64, Float32, boolean, …
        plain = dtype if masked is None or is_arrow else masked
        if not is_arrow and not _is_number(plain):
            _refuse_dtype(x)
        if masked is not None and (missing := int(x.isna().sum())):
            raise ExchangeError(
                "masked",
                f"from_dlpack: {missing} missing values of the {protocol.describe(x)} of {dtype} "
                "would be lost; pass x.fillna(value)",
            )
        if is_arrow:
            context.route.append("pandas __arrow_array__")
            return getattr(x, "array", x).__arrow_array__()
        context.route.append("pandas to_numpy")
        array = x.to_numpy(dtype=plain)
        if masked is not None:  # others share it until somebody writes
            array = array.view()
            array.flags.writeable = False
        return array

    def columns(self, x: Any) -> list[tuple[str, Any]] | None:
        frames: Any = getattr(sys.modules.get("pandas"), "DataFrame", ())
        if not isinstance(x, frames):
            return None
        return list(x.items())


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in _NUMBERS and type(dtype).__name__ not in _ADVICE


def _refuse_dtype(x: Any) -> NoReturn:
    kind = type(x.dtype).__name__
    advice = _ADVICE.get(kind)
    if kind in _OF_SERIES and advice is not None:
        within, name = _OF_SERIES[kind]
        advice = advice.format(f"x.{within}.{name}" if hasattr(x, within) else f"x.{name}")
    if advice is None:
        is_time = getattr(x.dtype, "kind", "O") in "mM"
        advice = _TIMES if is_time else "cast it to numbers, or leave it out"
    reason = "sparse" if kind == "SparseDtype" else "dtype"
    raise ExchangeError(
        reason, f"from_dlpack: the {protocol.describe(x)} holds {x.dtype}, no numbers; {advice}"
    )


HOLDER = Pandas()
