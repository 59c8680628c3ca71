"""`cupyx.scipy.special`, computed by SciPy's."""

from typing import Any

import scipy.special
from cupy._run import run


def __getattr__(name: str) -> Any:
    function = getattr(scipy.special, name)
    return lambda *arguments: run(function, *arguments)
