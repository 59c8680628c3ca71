"""What a framework's adapter is, and the table in which adapters are found by type and by name.

An adapter recognises its framework's objects without importing the framework, knows the safest
fast route in and out, and carries the framework's known defects. Its module is imported when the
first object of the framework appears, or when somebody asks for the framework by name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal
from weakref import ref

from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError, FrameworkMissingError
from dlbridge.exchange import protocol
from dlbridge.exchange.policy import Policy
from dlbridge.exchange.receipts import ExchangeContext

_CUDA = 2
HOST_DEVICES = (1, 3, 11, 13)  # CPU, CUDAHost, ROCMHost, CUDAManaged: the CPU reads them


class Quirk:
    """One known defect of a framework: what it does, since which version, what we do about it."""

    __slots__ = ("answer", "defect", "fact", "versions")

    def __init__(self, fact: int, versions: str, defect: str, answer: str) -> None:
        self.fact = fact
        self.versions = versions
        self.defect = defect
        self.answer = answer


class Framework:
    """One framework's adapter. Subclasses fill in the class attributes and override what differs.

    Attributes:
        name: as in `convert(x, name)`.
        module: the module to import for it.
        roots: top-level module names of its array types.
        way_in, way_out, zero_copy, notes: its line of the framework table.
        quirks: its known defects, each with what dlbridge does about it.
        immutable: whether its values must never change (JAX, TensorFlow).
    """

    name: str = ""
    module: str = ""
    roots: tuple[str, ...] = ()
    way_in: str = ""
    way_out: str = ""
    zero_copy: str = ""
    notes: str = ""
    quirks: tuple[Quirk, ...] = ()
    immutable: bool = False

    def recognises(self, cls: type) -> bool:
        """Return whether `cls` is an array type of this framework; no import happens."""
        return protocol.root_module(cls) in self.roots and hasattr(cls, "__dlpack__")

    def import_module(self) -> Any:
        """Import and return the framework, or raise FrameworkMissingError."""
        try:
            return import_module(self.module)
        except ImportError as error:
            raise FrameworkMissingError(
                f"convert: {self.name} is not installed here ({error}); "
                f"install dlbridge[{self.name}]"
            ) from error

    def array_type(self) -> type | None:
        """Return the exact type whose objects `convert` to this framework leaves as they are."""
        return None

    def classify(self, cls: type) -> tuple[str, object] | None:
        """Return (kind, payload) of the C path for objects of exactly `cls`, or None for none."""
        return None

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Return a Tensor over `x`, resolved or refused where its memory alone would be wrong."""
        return protocol.take(x, policy, context)

    def limits(self) -> native.Limits:
        """Return what this framework can represent."""
        return native.Limits(self.name)

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason code why `tensor` cannot come here as it is, or None."""
        return self.limits().refusal(tensor)

    def import_copies(self, tensor: native.TensorBase) -> str | None:
        """Return why the framework's own import copies `tensor`, or None where it shares."""
        return None

    def stream(self, device: int) -> int:
        """Return the stream on which this framework works now on a CUDA device, as DLPack does.

        Its exchange table tells, where it has one; else it is dlbridge's own current stream.
        """
        kind = self.array_type()
        table = protocol.table_of(kind) if kind is not None else None
        if table is None:
            return native.cuda_current_stream(device)
        return native.table_stream(table, (_CUDA, device))

    def entry(self, tensor: native.TensorBase | None) -> str:
        """Return the name of the function by which `give` enters, or "" where it enters none.

        It ends the route of a receipt, and of what `explain` foresees: there `tensor` is None for
        host memory that the producer has yet to make.
        """
        return ""

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        """Return the framework's array over `tensor`, which fits `limits`, through `entry`."""
        raise ExchangeError("consumer", f"to_{self.name}: {self.name} imports nothing")

    def path(self) -> str:
        """Return which path its tensors take in the installed version, where there are several."""
        return ""

    def start(self, converter: native.Converter) -> None:
        """Open the C path of `to_<name>` where there is one; called once, after the import."""


class _Entry:
    __slots__ = ("adapter", "package", "roots")

    def __init__(self, package: str, roots: tuple[str, ...]) -> None:
        self.package = package
        self.roots = roots
        self.adapter: Framework | None = None


_ENTRIES: dict[str, _Entry] = {}
# By address, since a metaclass may forbid its classes to be hashed, or call all of them equal.
_BY_TYPE: dict[int, tuple[ref[type], Framework | Literal[False]]] = {}
_CONVERTERS: dict[str, native.Converter] = {}
_STARTED: set[str] = set()


def register(name: str, package: str, roots: tuple[str, ...]) -> None:
    """Add a framework: a package whose `adapter` holds `ADAPTER`, and whose `binding` `BINDING`.

    `roots` are the top-level modules of its array types.
    """
    _ENTRIES[name] = _Entry(package, roots)


def names() -> list[str]:
    """Return the names of all adapters."""
    return list(_ENTRIES)


def adapter(name: str) -> Framework:
    """Return the adapter called `name`; its framework is not imported."""
    entry = _ENTRIES.get(name)
    if entry is None:
        raise ArgumentError(f"convert: unknown framework {name!r}; known are {', '.join(_ENTRIES)}")
    if entry.adapter is None:
        entry.adapter = import_module(f"{entry.package}.adapter").ADAPTER
    assert entry.adapter is not None
    return entry.adapter


def load_binding(name: str) -> Any:
    """Return the binding of kernels to the framework `name`, imported now.

    Raises:
        ArgumentError: no framework is called so.
        FrameworkMissingError: the binding needs the framework, which is not installed.
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        raise ArgumentError(f"kernels: unknown framework {name!r}; known are {', '.join(_ENTRIES)}")
    try:
        return import_module(f"{entry.package}.binding").BINDING
    except ModuleNotFoundError:
        adapter(name).import_module()  # raises FrameworkMissingError if that is what is missing
        raise


def load_module(name: str, part: str) -> ModuleType:
    """Return a module of the package of the framework `name`, imported now."""
    return import_module(f"{_ENTRIES[name].package}.{part}")


def is_installed(name: str) -> bool:
    """Return whether the framework of the adapter `name` can be imported, without importing it."""
    module = adapter(name).module
    return module in sys.modules or find_spec(module.partition(".")[0]) is not None


def adapter_of_type(cls: type) -> Framework | None:
    """Return the adapter that recognises `cls` or the nearest of its bases, or None."""
    number = id(cls)
    known = _BY_TYPE.get(number)
    if known is None:
        forget = ref(cls, lambda _: _BY_TYPE.pop(number, None))
        known = _BY_TYPE[number] = forget, _find_adapter(cls)
    return known[1] or None


def _find_adapter(cls: type) -> Framework | Literal[False]:
    for base in cls.__mro__:
        root = protocol.root_module(base)
        for name, entry in _ENTRIES.items():
            if root in entry.roots and adapter(name).recognises(base):
                return adapter(name)
    return False


def target(to: object) -> Framework:
    """Return the adapter meant by `to`: a name, a module, or an array type."""
    if isinstance(to, str):
        return adapter(to)
    if isinstance(to, type):
        found = adapter_of_type(to)
        if found is not None:
            return found
    root = str(getattr(to, "__name__", "")).partition(".")[0]
    for name, entry in _ENTRIES.items():
        if root in entry.roots:
            return adapter(name)
    raise ArgumentError(
        f"convert: `to` must be a framework's name, module or array type, got {to!r}"
    )


def classify(cls: type) -> tuple[str, object] | None:
    """Answer the core's question which C path takes objects of exactly `cls`."""
    found = adapter_of_type(cls)
    if found is not None:
        return found.classify(cls)
    table = protocol.table_of(cls)
    return ("table", table) if table is not None else None


def add_converter(name: str, converter: native.Converter) -> None:
    """Make `converter` the C path of conversions to `name`."""
    _CONVERTERS[name] = converter
    native.set_hooks(converters=_CONVERTERS)


def converter(name: str) -> native.Converter:
    """Return the converter to the framework `name`, opened if it has a C path."""
    start(adapter(name))
    return _CONVERTERS[name]


def start(framework: Framework) -> None:
    """Import `framework` if need be and open its C path, once."""
    if framework.name in _STARTED:
        return
    framework.import_module()
    if framework.name in _CONVERTERS:
        framework.start(_CONVERTERS[framework.name])
    _STARTED.add(framework.name)
