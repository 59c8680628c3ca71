"""`cupy.linalg`, computed by NumPy's."""

from typing import Any as _Any

import numpy as _np

from cupy._run import run as _run

_NAMES = (
    "cholesky", "det", "eigh", "eigvalsh", "inv", "lstsq", "matrix_power", "matrix_rank", "norm",
    "pinv", "qr", "slogdet", "solve", "svd",
)  # fmt: skip


def _function(name: str) -> _Any:
    function = getattr(_np.linalg, name)
    return lambda *arguments, **keywords: _run(function, *arguments, **keywords)


globals().update({name: _function(name) for name in _NAMES})
