"""Writing slices of an array at indices along its first axis: each framework's own way.

The functions take the old array, a vector of indices as the framework's own array, and the updates;
they return a new array. Where indices repeat, "add" adds all updates, "update" keeps one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _changed(old: Any, write: Callable[..., Any], indices: Any, updates: Any) -> Any:
    result = old.copy()
    write(result, indices, updates)
    return result


def _accumulated(old: Any, indices: Any, updates: Any) -> Any:
    result = old.copy()
    np.add.at(result, indices, updates)  # which is CuPy's for its arrays
    return result


# Framework -> what is done to the slices -> (old, indices, updates) -> new.
SCATTER: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": {
        "add": lambda old, at, new: _changed(old, np.add.at, at, new),
        "update": lambda old, at, new: _changed(old, np.ndarray.__setitem__, at, new),
    },
    "cupy": {
        "add": lambda old, at, new: _accumulated(old, at, new),
        "update": lambda old, at, new: _changed(old, type(old).__setitem__, at, new),
    },
    "torch": {
        "add": lambda old, at, new: old.index_put((at,), new, accumulate=True),
        "update": lambda old, at, new: old.index_put((at,), new),
    },
    "jax": {
        "add": lambda old, at, new: old.at[at].add(new),
        "update": lambda old, at, new: old.at[at].set(new),
    },
}
