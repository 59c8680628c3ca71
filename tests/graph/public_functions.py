"""The public functions and classes of dlbridge.graph, for tests that call all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dlbridge.graph as tf


def public() -> dict[str, Callable[..., Any]]:
    """Return the functions and classes of all public modules, as `tf.nn.relu`."""
    found = {}
    for prefix, module in {"tf": tf, **{f"tf.{x}": getattr(tf, x) for x in tf._MODULES}}.items():
        shown = dir(tf) if module is tf else getattr(module, "__all__", vars(module))
        for name in shown:
            value = getattr(module, name)
            if not name.startswith("_") and (
                str(getattr(value, "__module__", "")).startswith("dlbridge.graph.")
                and callable(value)
            ):
                found[f"{prefix}.{name}"] = value
    return found


PUBLIC = public()


# Made by operations; or of any names.
NOT_CALLED = ("tf.Tensor", "tf.Operation", "tf.GraphKeys", "tf.image.ResizeMethod")


def keywords(call: Callable[..., Any]) -> list[str]:
    """Return the parameters that may be given by name, of a call that takes no others."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:
        return []
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in named]


CALLED = {
    name: keywords(each)
    for name, each in PUBLIC.items()
    if name not in NOT_CALLED and keywords(each)
}
MODULES = sorted({name.rpartition(".")[0] for name in CALLED})


def name_in_refusals(name: str) -> str:
    """Return the name that a function has itself, the first of a class that has several."""
    call = PUBLIC[name]
    if inspect.isfunction(call):
        return call.__name__
    return next(each for each in PUBLIC if PUBLIC[each] is call).rpartition(".")[2]
