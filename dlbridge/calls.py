"""What all public functions have in common when they are called wrongly.

A refusal may be made far below, by code that many calls share. `public` begins its text with the
name of the function that the user called, and answers a misspelt keyword with the nearest one.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import signature
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar

from dlbridge.errors import ArgumentError, DLBridgeError, name_call
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

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
        TypeError: zeros() got an unexpected keyword argument 'dtpye'...id you mean 'dtype'?
    """
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*args, **keywords)
        except DLBridgeError as error:
            name_call(error, name)
            raise
        except not_from_handler(TypeError) as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within
            raise _misspelt(error, name, function) from None

    return call


def advised(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that answers a misspelt keyword with the nearest.

    From 3.13 on, Python itself does so, and the function is returned as it is. Its refusals name
    it already: this is for functions that `public` would make slower on every version.

    Example:
        >>> @advised
        ... def zeros(shape, dtype=None): ...
        >>> zeros((0,), dtpye="int8")
        Traceback (most recent call last):
        TypeError: zeros() got an unexpected keyword argument 'dtpye'...id you mean 'dtype'?
    """
    if sys.version_info >= (3, 13):
        return function

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*args, **keywords)
        except not_from_handler(TypeError) as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within
            raise _misspelt(error, call.__qualname__, function) from None

    return call


def without_advice(function: Callable[P, R]) -> Callable[P, R]:
    """Have `with_advice` leave a method as it is, which is called too often for a further frame."""
    _WITHOUT_ADVICE.add(function)
    return function


_WITHOUT_ADVICE: set[Callable[..., Any]] = set()
_NAMED: set[Callable[..., Any]] = set()  # methods whose refusals `publish` has named


def _is_left(method: Callable[..., Any]) -> bool:
    return method in _WITHOUT_ADVICE or method in _NAMED


def with_advice(cls: type[T]) -> type[T]:
    """Decorate a class: its public methods answer a misspelt keyword with the nearest.

    Example:
        >>> @with_advice
        ... class Shelf:
        ...     def put(self, book, *, height=1): ...
        >>> Shelf().put("Ulysses", heighht=2)
        Traceback (most recent call last):
        TypeError: Shelf.put() got an unexpected keyword argument 'heighht'...id you mean 'height'?
    """
    for name, value in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, FunctionType) and not _is_left(value):
            setattr(cls, name, advised(value))
        elif isinstance(value, classmethod | staticmethod):
            setattr(cls, name, type(value)(advised(value.__func__)))
    return cls


def named(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for what a method calls: its refusals are that method's."""
    return lambda function: _naming(function, name)


def publish(
    names: Mapping[str, Any], package: str, made_within: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the functions of a package with refusals that name them; classes are changed in place.

    A refusal (TypeError, ValueError, LookupError or one of ours) that the package made begins with
    the name of the function or class; one of other code, such as a function of the user, is left
    as it is. Where a function is defined, the new one takes its place: that is where `pickle` and
    `doctest` look. What was imported from there before is not changed, so that calls within the
    package cost what they did.

    Args:
        names: the public names, and what they stand for.
        package: whose functions and classes are meant.
        made_within: the classes whose constructors only the package itself calls, and often.

    Example:
        >>> import dlbridge.graph as tf
        >>> tf.argmax([1.0], axsi=0)
        Traceback (most recent call last):
        TypeError: argmax() got an unexpected keyword argument 'axsi'...id you mean 'axis'?
        >>> tf.reduce_sum([1.0], axis=3)
        Traceback (most recent call last):
        ValueError: reduce_sum: Invalid reduction dimension 3 for input with 1 dimensions...
    """
    found: dict[str, Any] = {}
    for name, value in names.items():
        if not str(getattr(value, "__module__", "")).startswith(f"{package}."):
            continue
        if isinstance(value, FunctionType):
            found[name] = _published(value)
        elif isinstance(value, type) and value not in _CALLS:
            _publish_class(value, name, name not in made_within)
    _NAMES.update(names)
    return found


_CALLS: dict[Any, str] = {}  # what was published -> the name in refusals
_NAMES: set[str] = set()  # with which the text of a refusal may begin


def _published(function: FunctionType) -> Any:
    """Return the function that takes the place of another, the same one each time."""
    if function in _CALLS:
        return function
    home = vars(sys.modules[function.__module__])
    there = home.get(function.__name__)
    if getattr(there, "__wrapped__", None) is function:
        return there
    made = _naming(function, function.__name__)
    _CALLS[made] = function.__name__
    if there is function:
        home[function.__name__] = made
    return made


def _publish_class(cls: type, name: str, is_made_by_users: bool) -> None:
    """Let refusals of methods and of the constructor name the class as users do."""
    _CALLS[cls] = name
    _NAMES.add(cls.__name__)
    for method, value in list(vars(cls).items()):
        if method.startswith("_") or not isinstance(value, FunctionType):
            continue
        _NAMES.add(f"{name}.{method}")
        if value not in _WITHOUT_ADVICE:
            made = _naming(value, f"{name}.{method}")
            _NAMED.add(made)
            setattr(cls, method, made)
    with_advice(cls)  # the others: methods of the class, static ones
    for method in ("__init__", "__new__") if is_made_by_users else ():
        function = getattr(cls, method)
        if isinstance(function, FunctionType):
            made = _naming(function, name)
            setattr(cls, method, staticmethod(made) if method == "__new__" else made)


def _naming(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function whose refusals name it."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except not_from_handler(
            TypeError, ValueError, LookupError, AttributeError, DLBridgeError
        ) as error:
            inner = error.__traceback__.tb_next if error.__traceback__ else None
            if inner is None or inner.tb_frame.f_globals.get("__name__") == "contextlib":
                raise _misspelt(error, name, function) from None
            if not _is_ours(inner):
                raise
            wrong = blamed(error, function, args, keywords)
            if isinstance(error, AttributeError) and wrong is not None:
                raise TypeError(f"{name}: {wrong}") from error
            if not isinstance(error, AttributeError):
                _name_refusal(error, name, wrong)
            raise

    return call


_WITH_ARGUMENTS = {"contextlib", "dlbridge", "numpy", "pathlib", "re"}  # take what a function got


def _is_ours(traceback: TracebackType | None) -> bool:
    """Return whether all frames are of dlbridge, or of what it calls with what it got."""
    while traceback is not None:
        root = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if root not in _WITH_ARGUMENTS:
            return False
        traceback = traceback.tb_next
    return True


def _name_refusal(error: Exception, name: str, wrong: str | None) -> None:
    """Begin the text of a refusal with a name; that of an inner call goes.

    Args:
        error: the refusal.
        name: of the function that the user called.
        wrong: what `blamed` says, which takes the place of the text, or its argument.
    """
    if len(error.args) != 1 or not isinstance(error.args[0], str):
        return
    text = error.args[0]
    if wrong is None and text.startswith((f"{name}: ", f"{name}(")):
        return
    inner, colon, rest = text.partition(": ")
    text = rest if colon and (inner in _NAMES or name.endswith(inner)) else text
    text = f"{name}: {text if wrong is None else wrong.replace(_TEXT, text)}"
    error.args = (text,)
    if hasattr(error, "message"):  # an OpError has it apart
        error.message = text


# ---- which argument is wrong -------------------------------------------------------------------

_TEXT = "\0"  # where the text of a refusal stands in what `blamed` returns


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _has(method: str, value: object) -> bool:
    """Return whether a value has a method, or is of a graph, and not known yet."""
    return hasattr(value, method) or hasattr(value, "graph")


def _is_instance(cls: type, value: object) -> bool:
    try:
        return isinstance(value, cls)
    except not_from_handler(TypeError):  # a protocol
        return True


# What an annotation asks for; all others are classes, or anything.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "None": ("None", lambda value: value is None),
    "str": ("a string", lambda value: isinstance(value, str | bytes)),
    "bool": ("True or False", partial(_has, "__bool__")),
    "int": ("an integer", partial(_has, "__index__")),
    "float": ("a number", partial(_has, "__float__")),
    "Callable": ("a function", callable),
    "os.PathLike": ("a path", partial(_has, "__fspath__")),
    **dict.fromkeys(("Sequence", "Iterable", "Collection", "list"), ("a list", _is_list)),
    **dict.fromkeys(("Mapping", "dict"), ("a dict", lambda value: hasattr(value, "keys"))),
}


def blamed(
    error: Exception,
    function: Callable[..., object],
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> str | None:
    """Return what is wrong with an argument that a refusal does not name, or None.

    That is the first argument that is not of the kind of its annotation, or else the only one that
    the text says it got.
    """
    try:
        given = signature(function).bind_partial(*args, **keywords).arguments
    except not_from_handler(TypeError):
        return None
    text = str(error)
    annotations = {} if isinstance(error, LookupError) else function.__annotations__
    for name, value in given.items():
        required = _required(str(annotations.get(name, "Any")), value, function.__globals__)
        if required is not None:
            return None if _names(text, name) else f"{name} must be {required}, got {value!r}"
    for is_meant in (_is_quoted, _is_of_the_type):
        found = [
            name
            for name, value in given.items()
            if name != "self" and any(is_meant(each, text) for each in _with_elements(value))
        ]
        if found:
            one = len(found) == 1 and not _names(text, found[0])
            return f"argument {found[0]!r}: {_TEXT}" if one else None
    return None


def _names(text: str, argument: str) -> bool:
    """Return whether a text names an argument; what Python says of attributes does not count."""
    said = re.sub(r"has no attribute '\w+'$", "", text)
    return re.search(rf"\b{argument}\b", said) is not None


def _required(annotation: str, value: object, known: Mapping[str, Any]) -> str | None:
    """Return what an annotation requires of a value, None where it fits or that is not known."""
    count = 1
    while count:  # of what is in it, nothing is said
        annotation, count = re.subn(r"\[[^\[\]]*\]", "", annotation)
    wanted = []
    for each in annotation.split(" | "):
        cls = known.get(each)
        if each in _KINDS:
            kind, fits = _KINDS[each]
        elif each in ("Any", "object") or not isinstance(cls, type):
            return None
        else:
            article = "an" if each[0] in "AEIOU" else "a"
            kind, fits = f"{article} {each}", partial(_is_instance, cls)
        if fits(value):
            return None
        wanted.append(kind)
    return " or ".join(wanted)


_SHOWN = (type(None), str, int, float, complex)
_FEW = 10  # elements of a list that are looked at


def _with_elements(value: object) -> tuple[object, ...]:
    return (value, *value[:_FEW]) if isinstance(value, list | tuple) else (value,)


def _is_quoted(value: object, text: str) -> bool:
    """Return whether a text says that it got a value."""
    if value is None and text.endswith("None values not supported."):
        return True
    is_small = isinstance(value, list | tuple | dict) and len(value) <= _FEW
    if not (is_small or isinstance(value, _SHOWN) or type(value).__repr__ is object.__repr__):
        return False  # its text may be long in the making
    quoted = re.escape(repr(value))
    return re.search(rf"(^|: ){quoted}( is not |$)|got {quoted}(?!\w|\.\w)", text) is not None


def _is_of_the_type(value: object, text: str) -> bool:
    """Return whether a text, one of Python's own, says that it got something of the type."""
    name = re.escape(type(value).__name__)
    return re.search(rf"'{name}'| (not|got) {name}$| a {name} into ", text) is not None


def _misspelt(error: Exception, name: str, function: Callable[..., object]) -> Exception:
    """Return Python's own refusal of the arguments in the name of the call, with advice."""
    text = re.sub(r"^[\w.<>]+\(\)", f"{name}()", str(error))
    return TypeError(f"{text}{advice(text, function)}")


def advice(text: str, function: Callable[..., object]) -> str:
    """Return what to add to the text of Python's own refusal of a keyword, or ""."""
    found = _UNEXPECTED.match(text)  # from 3.13 on, Python itself adds the nearest
    return did_you_mean(found[1], signature(function).parameters) if found else ""


def native_refusal(text: object, call: str, known: list[str]) -> str:
    """Return what Python says of the arguments of a function in C, in the name of the call.

    Example:
        >>> native_refusal("'ordr' is an invalid keyword argument for copy()", "copy", ["order"])
        "copy() got an unexpected keyword argument 'ordr'; did you mean 'order'?"
        >>> native_refusal("f() takes at most 1 argument (2 given)", "copy", ["order"])
        'copy() takes at most 1 argument (2 given)'
    """
    found = _INVALID.search(str(text))
    if found:
        word = found[1] or found[2]
        return f"{call}() got an unexpected keyword argument {word!r}{did_you_mean(word, known)}"
    return re.sub(r"^\w+\(\)", f"{call}()", str(text))


_INVALID = re.compile(
    r"'(\w+)' is an invalid keyword argument|got an unexpected keyword argument '(\w+)'"
)


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
