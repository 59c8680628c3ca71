"""What all public functions have in common when they are called wrongly.

A refusal may be made far below, by code that many calls share. `public` begins its text with the
name of the function that the user called, and answers a misspelt keyword with the nearest one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from dlbridge.errors import ArgumentError, DLBridgeError, name_call
from dlbridge.text import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_UNEXPECTED = re.compile(r".*\(\) got an unexpected keyword argument '(\w+)'$")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose refusals name it, and which advises on misspelt keywords.

    It calls no code of users: what that raises would be taken for a refusal of the function.

    Example:
        >>> @public
        ... def zeros(shape, dtype=None):
        ...     raise ArgumentError("shape must be positive")
        >>> zeros((0,))
        Traceback (most recent call last):
        dlbridge.errors.ArgumentError: zeros: shape must be positive
        >>> zeros((0,), dtpye="int8")
        Traceback (most recent call last):
        TypeError: zeros() got an unexpected keyword argument 'dtpye'; did you mean 'dtype'?
    """
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*args, **keywords)
        except DLBridgeError as error:
            name_call(error, name)
            raise
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within
            text = str(error).replace(f"{name}.__init__()", f"{name}()")
            raise TypeError(f"{text}{advice(text, function)}") from None

    return call


def advice(text: str, function: Callable[..., object]) -> str:
    """Return what to add to the text of Python's own refusal of a keyword, or ""."""
    found = _UNEXPECTED.match(text)  # from 3.13 on, Python itself adds the nearest
    return did_you_mean(found[1], signature(function).parameters) if found else ""


def check_flag(call: str, name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ArgumentError: the text begins with `call`.
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"{call}: {name} must be True or False, got {value!r}")


def words(call: str, name: str, value: object) -> tuple[str, ...]:
    """Return the strings of an argument that is a list of them; a single string is refused.

    Raises:
        ArgumentError: it is something else; the text begins with `call`.
    """
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, dict)):
        raise ArgumentError(f"{call}: {name} must be a list of strings, got {value!r}")
    given: tuple[Any, ...] = tuple(value)
    for each in given:
        if not isinstance(each, str):
            raise ArgumentError(f"{call}: {name} must be a list of strings, got {each!r} in it")
    return given
