"""The table of frameworks: one row for each, and its module, imported when it is needed.

Everything that is said of all frameworks follows from the rows: which type belongs to which
framework, `to_<name>`, `kernel.<name>`, `to_<name>_func`, and the lists that the command line
prints. The module, or package, holds an `exchange.adapter.Framework` as `ADAPTER`. A package may
have a module `binding` with a `kernels.binding.Binding` as `BINDING`, where kernels are called by
more than the direct route. Neither is imported before the first object of the framework appears, or
somebody asks for the framework by name.
"""

from __future__ import annotations

import itertools
import keyword
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, ClassVar, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import ref

from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.text import did_you_mean

T = TypeVar("T")
P = ParamSpec("P")


class Row(NamedTuple):
    """One framework, as far as it is known before its module is imported.

    Attributes:
        name: as in `convert(x, name)`.
        package: the module with its adapter, by its dotted name; a package, if there is more.
        roots: top-level modules of its array types, dtypes and devices.
        title: its name in texts.
        noun: what it calls an array, in texts.
        func: the name of the function that binds kernels to it.
    """

    name: str
    package: str
    roots: tuple[str, ...]
    title: str
    noun: str
    func: str


class Adapter(Protocol):
    """The part of a framework's adapter that dtypes and devices need."""

    device_names: ClassVar[dict[int, str]]

    def import_module(self, call: str = "convert") -> Any:
        """Import and return the framework."""

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        """Return the DLDataType fields of a dtype object of the framework."""

    def make_dtype(self, name: str) -> Any:
        """Return the framework's dtype object for a DType's name."""

    def read_device(self, x: Any) -> tuple[int, int]:
        """Return the DLDevice fields of a device object of the framework."""

    def make_device(self, kind: str, number: int) -> Any:
        """Return the framework's device object for its own name of a device type."""


class HolderRow(NamedTuple):
    """A library whose objects hold tensors, but to which nothing is converted.

    Attributes:
        name: of the source, in receipts.
        package: the module with its `HOLDER`, by its dotted name.
    """

    name: str
    package: str


class Origin:
    """Which execution of a module registers something: the one that is under way.

    Python executes a module again when its import was interrupted, with new globals. What it then
    registers replaces what it has registered before.
    """

    __slots__ = ("_globals",)

    def __init__(self) -> None:
        frame = sys._getframe(1)
        while frame.f_code.co_name != "<module>" and frame.f_back is not None:
            frame = frame.f_back
        self._globals = frame.f_globals

    def may_replace(self, known: Origin) -> bool:
        """Return whether this is `known`, or a later execution of the same module."""
        if self._globals is known._globals:
            return self is known
        mine, other = self._globals.get("__spec__"), known._globals.get("__spec__")
        if mine is None or other is None:  # a program, which nobody imports
            return False
        return bool((mine.name, mine.origin) == (other.name, other.origin))


_ROWS: dict[str, Row] = {}
_ORIGINS: dict[str, Origin] = {}
_HOLDERS: dict[str, HolderRow] = {}  # by top-level module
_BY_ROOT: dict[str, Row] = {}
_ADAPTERS: dict[str, Any] = {}
_LISTENERS: list[Callable[[Row], None]] = []


def register(
    name: str,
    package: str,
    roots: tuple[str, ...],
    *,
    title: str | None = None,
    noun: str = "array",
    func: str | None = None,
) -> Row:
    """Add a framework to the table.

    Args:
        name: lower-case, an identifier; `convert(x, name)`, `to_<name>` and `kernel.<name>` are
            called after it.
        package: the dotted name of the module or package with `ADAPTER`; not imported yet.
        roots: the top-level modules of its array types.
        title: its name in texts; None for `name`.
        noun: what it calls an array, in texts.
        func: the name of the function that binds kernels to it; None for `to_<name>_func`.

    Raises:
        ArgumentError: the name is no identifier, or is taken.
    """
    if not (name.isidentifier() and name.islower()) or keyword.iskeyword(name):
        raise ArgumentError(
            f"register_framework: name must be a lower-case identifier, got {name!r}"
        )
    origin = Origin()
    if not origin.may_replace(_ORIGINS.setdefault(name, origin)):
        raise ArgumentError(f"register_framework: there is a framework called {name!r}")
    _ORIGINS[name] = origin
    made = Row(name, package, roots, title or name, noun, func or f"to_{name}_func")
    _ROWS[name] = made
    for root in roots:
        if _BY_ROOT.setdefault(root, made).name == name:
            _BY_ROOT[root] = made
    for listener in _LISTENERS:
        listener(made)
    return made


def for_each(listener: Callable[[Row], None]) -> None:
    """Call `listener` with every row: those of now, and each that is registered later."""
    _LISTENERS.append(listener)
    for each in _ROWS.values():
        listener(each)


def rows() -> list[Row]:
    """Return all rows, in the order in which they were registered."""
    return list(_ROWS.values())


# What programs import a framework as; they are understood wherever a framework is named.
_ALIASES = {
    "pytorch": "torch",
    "tf": "tensorflow",
    "np": "numpy",
    "jnp": "jax",
    "cp": "cupy",
    "pa": "pyarrow",
    "arrow": "pyarrow",
    "paddlepaddle": "paddle",
    "ort": "onnxruntime",
    "wp": "warp",
}


def canonical_name(name: str) -> str:
    """Return the name of the row that a name of a framework means; an unknown one as it is.

    Upper case is as good as lower case, and so are the names as which programs import a framework
    and those of its modules.

    Example:
        >>> canonical_name("PyTorch"), canonical_name("tvm_ffi"), canonical_name("caffe")
        ('torch', 'tvm', 'caffe')
    """
    if name in _ROWS:
        return name
    lowered = name.lower()
    known = _ALIASES.get(lowered, lowered)
    if known in _ROWS:
        return known
    found = _BY_ROOT.get(known)
    return name if found is None else found.name


def require_name(name: object, call: str) -> None:
    """Refuse a framework's name that is not a string.

    Raises:
        ArgumentError: the text begins with `call`.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"{call}: a framework's name must be a string, got {name!r}")


_WITH_DEVICE = ("convert", "explain", "convert_tree", "stream")
_DEVICE = re.compile(r"(cpu|cuda|gpu|tpu|mps|rocm|xpu)(:\d+)?")


def row(name: str, call: str = "convert") -> Row:
    """Return the row of a framework, by any of its names; see `canonical_name`.

    Raises:
        ArgumentError: there is none of this name; the text begins with `call`.
    """
    require_name(name, call)
    found = _ROWS.get(name) or _ROWS.get(canonical_name(name))
    if found is None:
        known = ", ".join(_ROWS)
        nearest = did_you_mean(name, (*_ROWS, *_ALIASES))
        if call in _WITH_DEVICE and _DEVICE.fullmatch(name):
            nearest = f"; {name!r} is a device: {call}(x, to, device={name!r})"
        raise ArgumentError(f"{call}: unknown framework {name!r}; known are {known}{nearest}")
    return found


def one_of(name: object, known: Iterable[str], call: str, what: str) -> str:
    """Return the framework's own name, which must be among `known`.

    Args:
        name: as the user wrote it.
        known: the frameworks that can do it.
        call: what was called, for the text.
        what: what they can do, for the text: "runs no nodes".

    Raises:
        ArgumentError: it is none of these.
    """
    if isinstance(name, str) and canonical_name(name) in known:
        return canonical_name(name)
    raise ArgumentError(
        f"{call}: {name!r} {what}; known are {', '.join(known)}{did_you_mean(name, known)}"
    )


def row_of_root(root: str) -> Row | None:
    """Return the row of the framework to which a top-level module belongs, or None."""
    return _BY_ROOT.get(root)


def register_holder(name: str, package: str, roots: tuple[str, ...]) -> None:
    """Add a library whose objects hold tensors: the top-level modules of these objects' types."""
    for root in roots:
        _HOLDERS[root] = HolderRow(name, package)


def holder_of_root(root: str) -> HolderRow | None:
    """Return the row of the holders of tensors to which a top-level module belongs, or None."""
    return _HOLDERS.get(root)


def adapter(name: str, call: str = "convert") -> Any:
    """Return the `ADAPTER` of a framework, an Adapter; the framework itself is not imported.

    Raises:
        ArgumentError: no framework is called so.
    """
    found = _ADAPTERS.get(name)
    if found is None:
        own = row(name, call)
        module: Any = load(import_module, own.package)
        found = _ADAPTERS[own.name] = module.ADAPTER
    return found


def adapter_of_object(x: object) -> Adapter | None:
    """Return the adapter of the framework from which the type of a dtype or device comes."""
    found = _BY_ROOT.get(str(type(x).__module__).partition(".")[0])
    return None if found is None else adapter(found.name)


# ---- imports that are put off, locks, and forks --------------------------------------------------

_HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_IMPORTLIB = "<frozen importlib"

# Threads that import something for dlbridge now, and threads about to fork. There is no lock, which
# an interrupt could leave locked: each side says what it is about to do, then looks at the other.
_LOADING: set[int] = set()
_FORKING: set[int] = set()
_LONGEST = 30.0  # seconds that a fork waits at most: the import may wait for the thread that forks


def load(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which may import; forks of this process wait until it is over.

    A process that is forked during the import of a module inherits the module's lock, which no
    thread of the child ever releases: the child would hang when it needs the module.
    """
    me = threading.get_ident()
    if me in _LOADING:  # a part of what is being loaded
        return function(*args, **kwargs)
    try:
        try:
            _LOADING.add(me)
            while _FORKING - {me}:
                _LOADING.discard(me)
                time.sleep(0.001)
                _LOADING.add(me)
            return function(*args, **kwargs)
        finally:
            _LOADING.discard(me)
    finally:  # once more, for an interrupt of the first time
        _LOADING.discard(me)


# ---- once others import a module -----------------------------------------------------------------


def is_loaded(module: str) -> bool:
    """Return whether a module is imported, all of it."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


class _ImportWatch(MetaPathFinder):
    """Calls back once modules are imported; in the way of no import of others."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and spec.loader is not None:
            self._run_after(name, spec.loader)
        return spec

    def _run_after(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for callback in self.waiting.pop(name, ()):
                callback()

        loader.exec_module = exec_module


_WATCH = _ImportWatch()


def after_import(module: str, callback: Callable[[], None]) -> None:
    """Call back, once, when a module has been imported; equal callbacks count as one."""
    waiting = _WATCH.waiting.setdefault(module, [])
    if callback not in waiting:
        waiting.append(callback)
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)


# ---- forks ---------------------------------------------------------------------------------------

# References to the RLocks made by `lock`. A function in C removes those that are gone: what the
# handler of a signal raises in a callback written in Python, as WeakSet's, is lost.
_LOCKS: set[ref[Any]] = set()


def lock() -> Any:
    """Return a new RLock that no forked process inherits from a thread that it does not have.

    Hold it briefly, or work in `load`, for which a fork waits.
    """
    made = threading.RLock()
    _LOCKS.add(ref(made, _LOCKS.discard))
    return made


class SerialNumbers:
    """The numbers from `first` on, each given once, whichever threads ask.

    Without a GIL an `itertools.count` of Python 3.13 gives some to two of them.
    """

    __slots__ = ("_count", "_lock")

    def __init__(self, first: int = 0) -> None:
        self._count = itertools.count(first)
        self._lock = lock()

    def __iter__(self) -> SerialNumbers:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._count)


def _before_fork() -> None:
    deadline = time.monotonic() + (0.0 if _is_importing() else _LONGEST)
    me = threading.get_ident()
    _FORKING.add(me)
    while _is_loading_elsewhere(me) and time.monotonic() < deadline:
        _FORKING.discard(me)  # what is being loaded may load more on threads of its own
        try:
            time.sleep(0.001)
        finally:
            _FORKING.add(me)


def _is_loading_elsewhere(me: int) -> bool:
    """Return whether another thread loads something for dlbridge, or imports it in a function."""
    if _LOADING - {me}:
        return True
    return any(
        _imports_for_us(frame) for thread, frame in sys._current_frames().items() if thread != me
    )


def _imports_for_us(frame: FrameType | None) -> bool:
    is_importing = False
    while frame is not None:
        name = frame.f_code.co_filename
        is_importing = is_importing or name.startswith(_IMPORTLIB)
        if is_importing and name.startswith(_HOME):
            return True
        frame = frame.f_back
    return False


def _is_importing() -> bool:
    """Return whether this thread is in an import, whose lock others may wait for."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame is not None or threading.get_ident() in _LOADING


def _after_fork_in_parent() -> None:
    _FORKING.discard(threading.get_ident())


def _after_fork_in_child() -> None:
    _LOADING.intersection_update((threading.get_ident(),))
    _FORKING.clear()
    for each in tuple(_LOCKS):
        made = each()
        if made is not None and not made._is_owned():
            made._at_fork_reinit()
    native.signals_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
