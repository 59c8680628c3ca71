"""The functions of CuPy's namespace, computed by NumPy's of the same names."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._run import run

# Those of CuPy 14 that NumPy has under the same name.
FUNCTIONS = """
    all allclose amax amin any append arange argmax argmin argpartition argsort argwhere
    array_equal around atleast_1d atleast_2d atleast_3d average bincount broadcast_arrays
    broadcast_to clip column_stack concatenate convolve copyto corrcoef count_nonzero cross
    cumprod cumsum diag diagflat diagonal diff digitize dot dsplit dstack ediff1d einsum empty
    empty_like expand_dims extract eye flatnonzero flip fliplr flipud full full_like hsplit
    hstack identity imag indices inner interp isclose isin kron lexsort linspace logspace max
    mean median meshgrid min moveaxis nan_to_num nancumsum nanmax nanmean nanmin nanprod
    nansum nonzero ones ones_like outer pad partition percentile prod ptp quantile ravel
    ravel_multi_index real repeat reshape resize roll rollaxis rot90 round searchsorted select
    shape size sort split squeeze stack std sum swapaxes take_along_axis tensordot tile trace
    transpose trapezoid tri tril triu trim_zeros union1d unique unravel_index unwrap var vdot
    vsplit vstack where zeros zeros_like
"""
UFUNCS = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or
    bitwise_xor cbrt ceil conjugate copysign cos cosh deg2rad degrees divide divmod equal exp
    exp2 expm1 fabs float_power floor floor_divide fmax fmin fmod frexp gcd greater
    greater_equal heaviside hypot invert isfinite isinf isnan lcm ldexp left_shift less
    less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or
    logical_xor matmul maximum minimum modf multiply negative nextafter not_equal positive
    power rad2deg radians reciprocal remainder right_shift rint sign signbit sin sinh sqrt
    square subtract tan tanh true_divide trunc
"""
ALIASES = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
    "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh", "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift", "bitwise_not": "invert",
    "bitwise_right_shift": "right_shift", "concat": "concatenate", "conj": "conjugate",
    "mod": "remainder", "permute_dims": "transpose", "pow": "power",
}  # fmt: skip
_SCATTERED = {"add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}


class ufunc:
    """An element-wise function."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.nin, self.nout = function.nin, function.nout

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute it on the current stream."""
        return run(self._function, *arguments, **keywords)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        """Change elements, also one several times; CuPy has it for some functions."""
        if self.__name__ not in _SCATTERED:
            raise NotImplementedError(f"`{self.__name__}.at` is not supported yet")
        run(self._function.at, a, indices, b, _writes=[a])

    def __repr__(self) -> str:
        return f"<ufunc 'cupy_{self.__name__}'>"


def _function(name: str) -> Any:
    function = getattr(np, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        return run(function, *arguments, **keywords)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "cupy"
    return call


def take(a: Any, indices: Any, axis: int | None = None, out: Any = None) -> Any:
    """Take elements; indices out of range wrap around."""
    return run(np.take, a, indices, axis=axis, out=out, mode="wrap")


def namespace() -> dict[str, Any]:
    """Return the functions by name."""
    found = {name: _function(name) for name in FUNCTIONS.split()}
    found |= {name: ufunc(getattr(np, name)) for name in UFUNCS.split()}
    found |= {name: found[other] for name, other in ALIASES.items()}
    found["take"] = take
    return found
