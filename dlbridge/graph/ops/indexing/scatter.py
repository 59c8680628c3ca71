"""Scatter into rows of an array, in the way of each framework.

Indices are a vector of the framework. Where they repeat, "add" adds all updates and "update" keeps
one of them. `SCATTER` makes a new array; `PUTTERS` write into one that the caller owns.
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


# Framework -> how the slices change -> (old, indices, updates) -> new.
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


def _numpy_put(how: str) -> Any:
    ufunc = {
        "Add": np.add, "Sub": np.subtract, "Max": np.maximum, "Min": np.minimum
    }.get(how)  # fmt: skip

    def put(table: Any, numbers: Any, rows: Any) -> Any:
        if ufunc is None:
            table[numbers] = rows
        else:
            ufunc.at(table, numbers, rows)
        return table

    return put


def _torch_put(how: str) -> Any:
    reduction = {"Max": "amax", "Min": "amin"}.get(how)

    def put(table: Any, numbers: Any, rows: Any) -> Any:
        if how == "Update":
            table[numbers] = rows
        elif reduction:
            table.scatter_reduce_(0, numbers[:, None].expand_as(rows), rows, reduction)
        else:
            table.index_add_(0, numbers, rows, alpha=-1 if how == "Sub" else 1)
        return table

    return put


def _jax_put(how: str) -> Any:
    method = {"Update": "set", "Sub": "subtract"}.get(how, how.lower())
    return lambda table, numbers, rows: getattr(table.at[numbers], method)(rows, mode="drop")


PUTTERS = {"numpy": _numpy_put, "cupy": _numpy_put, "torch": _torch_put, "jax": _jax_put}
