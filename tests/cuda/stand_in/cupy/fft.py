"""`cupy.fft`, computed by NumPy's."""

from typing import Any as _Any

import numpy as _np

from cupy._run import run as _run

_NAMES = (
    "fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "irfft", "irfft2", "rfft", "rfft2",
)  # fmt: skip


def _function(name: str) -> _Any:
    function = getattr(_np.fft, name)
    return lambda *arguments, **keywords: _run(function, *arguments, **keywords)


globals().update({name: _function(name) for name in _NAMES})
