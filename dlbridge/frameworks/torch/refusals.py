"""Error messages for kernel calls that torch.compile traces.

Dynamo cannot trace the code that makes our exceptions, so under `fullgraph=True` its own error
would hide the message. Each call is therefore first compared with the schema, by a function that
dynamo calls rather than traces. If the call is refused, the graph breaks with the message as the
reason, which dynamo shows. Without `fullgraph=True` the call then runs eagerly and raises the
exception itself.

Sizes are checked by the operator, with the same messages, when dynamo computes its shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import torch

from dlbridge.dtype import as_dtype
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.frameworks.torch.compiling import end_graph
from dlbridge.kernels.kernel import Kernel, is_native_to
from dlbridge.kernels.schema import Described, Schema

Check = Callable[[tuple[Any, ...], dict[str, Any]], None]


def make_check(kernel: Kernel) -> Check:
    """Return a function, for dynamo to trace, that breaks the graph if a call is refused.

    It checks the number and names of the arguments and the types of scalars, and the dtypes and
    ranks of tensors where no operator does so.
    """
    schema = kernel.schema
    assert schema is not None
    has_operator = not is_native_to(kernel, "torch")
    takes_lists = any(part.many is not None for part in schema.tensors)
    find = _finder(schema, has_operator or takes_lists or kernel.autocast is not None)

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Numbers may be symbolic: their values are read only once the call is refused.
        if find(*_tell_all(args, kwargs, False)) is None:
            return
        refused = find(*_tell_all(args, kwargs, True))
        if refused is None:
            return
        end_graph(refused[1])
        if refused[0] == "type":
            raise TypeError(refused[1])
        raise ValueError(refused[1])

    return check


def _finder(schema: Schema, sorts_only: bool) -> Callable[..., Any]:
    def find(args: Any, kwargs: Any) -> tuple[str, str] | None:
        """Return the reason code and the message, or None if the call is not refused."""
        if _is_unknown((args, kwargs)):
            return None
        try:
            given = schema.arrange(
                tuple([_stand_in(each) for each in args]),
                {name: _stand_in(each) for name, each in kwargs},
            )
            if not sorts_only:
                schema.bind([None if each is None else each.described for each in given.tensors])
        except (UnsupportedTypeError, ArgumentError) as error:
            return error.reason, str(error)
        return None

    find._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as by torch.compiler
    return find


class _Tensor:
    """Stand-in for a tensor."""

    shape = ()

    def __init__(self, form: Any) -> None:
        dtype, extents, device = form
        self.described = Described(extents, as_dtype(dtype), "torch.Tensor", str(device))


_Tensor.__module__, _Tensor.__name__ = "torch", "Tensor"  # for messages


def _stand_in(told: Any) -> Any:
    kind, value = told
    if kind == "tensor":
        return _Tensor(value)
    if kind == "value":
        return value
    items = [_stand_in(each) for each in value]
    return items if kind == "list" else tuple(items)


def _is_unknown(told: Any) -> bool:
    return told == _UNKNOWN or (isinstance(told, tuple) and any(map(_is_unknown, told)))


# ---- what dynamo traces --------------------------------------------------------------------------

_UNKNOWN = ("unknown", None)


def _tell_all(args: tuple[Any, ...], kwargs: dict[str, Any], exact: bool) -> tuple[Any, Any]:
    """Return constants that describe the arguments."""
    by_name = tuple([(name, _tell(value, exact)) for name, value in kwargs.items()])
    return tuple([_tell(each, exact) for each in args]), by_name


def _tell(value: Any, exact: bool) -> Any:
    if isinstance(value, torch.Tensor):
        shape = tuple([index(size) if exact else None for size in value.shape])
        return ("tensor", (value.dtype, shape, value.device))
    if value is None or type(value) in (bool, str) or isinstance(value, torch.dtype):
        return ("value", value)
    if type(value) in (int, float):
        return ("value", value if exact else type(value)(1))
    if type(value) in (list, tuple):
        kind = "list" if type(value) is list else "tuple"
        return (kind, tuple([_tell(each, exact) for each in value]))
    return _UNKNOWN
