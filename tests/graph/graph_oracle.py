"""TensorFlow as the oracle of our graph functions: one case is built and run in both."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import dlbridge.graph as dlb

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Relative and absolute error that one operation may have, by dtype.
TOLERANCES = {
    "float64": (1e-9, 1e-12), "complex128": (1e-9, 1e-12), "float32": (2e-5, 1e-6),
    "complex64": (2e-5, 1e-6), "float16": (4e-3, 1e-3), "bfloat16": (3e-2, 1e-2),
}  # fmt: skip


class Case(NamedTuple):
    """A graph, built by functions of `tf` on placeholders, and the values fed to these.

    Attributes:
        name: of the test.
        build: of the module and the placeholders; returns a Tensor or several.
        inputs: an array for each placeholder.
        named: whether the names of results are TensorFlow's.
        frameworks: where it runs.
        static: whether static shapes are TensorFlow's, also when less is known of the inputs.
        error: the class of the error when it runs, or None.
    """

    name: str
    build: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    named: bool = True
    frameworks: tuple[str, ...] = ("numpy", "torch", "jax")
    static: bool = True
    error: str | None = None


class Outcome(NamedTuple):
    """The outcome of a case: an error's name, or for each result name, dtype, shape, value."""

    error: str | None
    results: tuple[Any, ...] = ()


def tensorflow() -> Any:
    """Return `tf.compat.v1`, or skip; its behaviour of 2.x stays, which other tests may need."""
    return pytest.importorskip("tensorflow").compat.v1


def plain(tf: Any) -> Any:
    """Return a configuration of a session that runs the graph as it was built: in half the time."""
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


def as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


def dims_of(tensor: Any) -> list[Any] | None:
    shape = tensor.shape
    return None if shape.rank is None else list(shape.as_list())


KNOWN: dict[str, Callable[[Any], Any]] = {
    "all": np.shape,
    "rank": lambda x: [None] * np.ndim(x),
    "some": lambda x: [None if i % 2 == 0 else n for i, n in enumerate(np.shape(x))],
    "nothing": lambda x: None,
}


def refines(one: list[Any] | None, other: list[Any] | None) -> bool:
    """Return whether `one` knows all that `other` does of a shape."""
    if other is None:
        return True
    if one is None or len(one) != len(other):
        return False
    return all(b is None or a == b for a, b in zip(one, other, strict=True))


def place(tf: Any, inputs: tuple[Any, ...], known: str) -> list[Any]:
    """Return a placeholder for each input."""
    as_dtype = tf.as_dtype if hasattr(tf, "as_dtype") else tf.dtypes.as_dtype
    return [
        tf.placeholder(as_dtype(np.asarray(x).dtype), KNOWN[known](x), f"x{i}")
        for i, x in enumerate(inputs)
    ]


def static(tf: Any, case: Case, known: str) -> Outcome:
    """Return names, dtypes and static shapes, or the class of the error."""
    with tf.Graph().as_default():
        places = place(tf, case.inputs, known)
        try:
            results = as_list(case.build(tf, *places))
        except Exception as error:
            return Outcome(_class(error))
        found = [
            (t.name, t.dtype.base_dtype.name, dims_of(t)) for t in results if hasattr(t, "dtype")
        ]
        return Outcome(None, tuple(found))


def values(tf: Any, case: Case, known: str = "all", **session: Any) -> Outcome:
    """Return the values, or the class of the error."""
    with tf.Graph().as_default():
        places = place(tf, case.inputs, known)
        try:
            results = as_list(case.build(tf, *places))
            with tf.Session(**session) as running:
                feeds = dict(zip(places, case.inputs, strict=True))
                return Outcome(None, tuple(running.run(results, feeds)))
        except Exception as error:
            return Outcome(_class(error))


def together(tf: Any, cases: list[Case], **session: Any) -> list[Outcome]:
    """Return the values of cases that share a graph and a run; of those that fail, one by one."""
    sound = [case for case in cases if case.error is None]
    with tf.Graph().as_default():
        results, feeds = [], {}
        for case in sound:
            places = place(tf, case.inputs, "all")
            results.append(as_list(case.build(tf, *places)))
            feeds.update(zip(places, case.inputs, strict=True))
        with tf.Session(**session) as running:
            got = iter(running.run(results, feeds) if sound else ())
    return [
        Outcome(None, tuple(next(got))) if case.error is None else values(tf, case, **session)
        for case in cases
    ]


def families(cases: list[Any], after: str = "-") -> dict[str, list[Any]]:
    """Return cases by the function that they are about: the first word of their names."""
    found: dict[str, list[Any]] = {}
    for case in cases:
        found.setdefault(case.name.partition(after)[0] or case.name, []).append(case)
    return found


def _class(error: Exception) -> str:
    """The class of an error that both libraries know; ours may be more special."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return next(
        (
            name
            for name in names
            if name in ("ValueError", "TypeError") or hasattr(dlb.errors, name)
        ),
        names[0],
    )


def assert_close(got: Any, wanted: Any, tolerance: float = 1.0, of: str = "") -> None:
    """Compare dtype, shape and values; floats as closely as their dtype allows."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, of
    assert got.dtype == wanted.dtype, of
    relative, absolute = TOLERANCES.get(wanted.dtype.name, (0, 0))
    if not relative:
        np.testing.assert_array_equal(got, wanted, of)
        return
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        got.astype(wide),
        wanted.astype(wide),
        relative * tolerance,
        absolute * tolerance,
        err_msg=of,
    )


def bfloat16(x: Any) -> Any:
    return np.asarray(x).astype(ml_dtypes.bfloat16)
