"""The base class of adapters, and how the adapter of an object, type or name is found.

An adapter recognises its framework's objects without importing the framework, knows the safest
fast route in and out, the framework's names of dtypes and devices, and its known defects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, cast
from weakref import ref

from dlbridge import device, dtype, registry
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, ExchangeError, FrameworkMissingError
from dlbridge.exchange import protocol
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.signals import not_from_handler
from dlbridge.tensor.allocator import Allocator

_CUDA = 2
CPath = tuple[str, object] | tuple[str, object, Callable[[Any], Any]]


class Sign(NamedTuple):
    """Which exchanges of the compatibility matrix show a defect, and by what outcome.

    Attributes:
        outcome: what happens without dlbridge: one of `dlbridge.check.exchanges.OUTCOMES`.
        role: what the framework is in these exchanges: "producer", "consumer" or "either".
        traits: at least one of these is a trait of the tensor, as `exchanges.read_traits` names
            them, or its dtype; none for every tensor.
    """

    outcome: str
    role: str = "consumer"
    traits: tuple[str, ...] = ()


class Quirk:
    """One known defect of a framework, what dlbridge does about it, and what else users can do.

    Attributes:
        fact: its line in docs/peers.md.
        versions: "all", or the series of releases in which it was seen: "2.13" is 2.13, 2.13.1, …,
            and "0.10, 0.12" those of two.
        defect: what the framework does.
        answer: what dlbridge does about it.
        advice: for code that exchanges tensors without dlbridge.
        of: the package that has these versions; "" for the one of the adapter.
        sign: which exchanges show it; None where an exchange between two frameworks does not.
    """

    __slots__ = ("advice", "answer", "defect", "fact", "of", "sign", "versions")

    def __init__(
        self,
        fact: int,
        versions: str,
        defect: str,
        answer: str,
        advice: str = "",
        of: str = "",
        sign: Sign | None = None,
    ) -> None:
        self.fact = fact
        self.versions = versions
        self.defect = defect
        self.answer = answer
        self.advice = advice
        self.of = of
        self.sign = sign

    def was_seen_in(self, version: str) -> bool:
        """Return whether the defect was seen in the series of an installed version.

        False says nothing of a release that was never measured.
        """
        found = f"{version.partition('+')[0]}."
        series = self.versions.split(", ")
        return series == ["all"] or any(found.startswith(f"{each}.") for each in series)


class Expressions(NamedTuple):
    """How code without dlbridge makes, takes and reads the arrays of a framework, in Python.

    In all of them `np` is NumPy, `x` an array of the framework, and what `modules` names is
    imported; the functions of `dlbridge.check.exchanges.HELPERS` are there as well.

    Attributes:
        modules: module by its name in the expressions.
        make: an array with the values of the NumPy array `a`, which may be of ml_dtypes.
        from_dlpack: an array of the object `{}`, which has `__dlpack__`.
        values: a NumPy array of the values of `x`.
        address: of the first element of `x`.
        copied: as `from_dlpack`, and never in the memory of `{}`; "" where no argument asks for it.
        is_view: whether `make` shares the memory of `a`, so that its layout is kept.
    """

    modules: dict[str, str]
    make: str
    from_dlpack: str
    values: str
    address: str
    copied: str = ""
    is_view: bool = False


class Key(NamedTuple):
    """A random key, or an array of them, which has no memory of its own.

    Attributes:
        framework: the adapter of its framework.
        data: the array of that framework with its bits.
        remake: the key of such an array.
    """

    framework: Framework
    data: Any
    remake: Callable[[Any], Any]


class Holder:
    """A library whose objects hold tensors: a column of a data frame, a variable of a layer.

    Attributes:
        name: of the source, in receipts.
    """

    name: str = ""

    def recognises(self, cls: type) -> bool:
        """Return whether objects of `cls` hold one tensor each; no import happens."""
        return False

    def held(self, x: Any, policy: Policy, context: ExchangeContext) -> Any:
        """Return what is exchanged in the place of `x`: an array of NumPy, a tensor of another.

        Raises:
            ExchangeError: it holds nothing that a tensor can be: nulls, text, several pieces.
        """
        raise NotImplementedError

    def columns(self, x: Any) -> list[tuple[str, Any]] | None:
        """Return the columns of a table by their names, or None where `x` is none."""
        return None


class Framework:
    """One framework's adapter. Subclasses fill in the class attributes and override what differs.

    Attributes:
        name: as in `convert(x, name)`.
        module: the module to import for it.
        roots: top-level module names of its array types.
        way_in, way_out, zero_copy, notes: its line of the framework table.
        quirks: its known defects, each with what dlbridge does about it.
        expressions: how it is used without dlbridge; None leaves it out of the matrix.
        immutable: whether its values must never change (JAX, TensorFlow).
        writable: whether kernels may write its arrays in place.
        taken_by: the entry by which C takes its objects, as `take` notes it in the route.
        not_after: modules after which importing it crashes the process.
        not_before: modules that crash the process when they are imported after it.
        has_streams: whether kernels run on its current stream, which `stream` returns.
        allocates: whether `dlbridge.set_allocator` knows its allocator of device memory.
        wide_types: how 64-bit types are switched on, for texts; "" where there is no switch.
        extra: the extra of dlbridge that installs it, for texts; "" for none.
        moves: the device types whose memory dlbridge has only this framework copy and order.
        device_names: its own names of DLPack's device types; empty without device objects.
        constructed: the dtypes that its import of DLPack lacks, though it may have them.
        to_host: how its own tensor `x` is copied to the host, for texts.
        to_dtype: how its own tensor `x` is cast, for texts.
    """

    name: str = ""
    module: str = ""
    roots: tuple[str, ...] = ()
    way_in: str = ""
    way_out: str = ""
    zero_copy: str = ""
    notes: str = ""
    quirks: tuple[Quirk, ...] = ()
    expressions: Expressions | None = None
    taken_by: str = "__dlpack__"
    not_after: tuple[str, ...] = ()
    not_before: tuple[str, ...] = ()
    immutable: bool = False
    writable: bool = True
    has_streams: bool = False
    allocates: bool = False
    wide_types: str = ""
    extra: str = ""
    to_host: str = "x.cpu()"
    to_dtype: str = '{x}.astype("{dtype}")'
    device_names: ClassVar[dict[int, str]] = {}
    constructed: ClassVar[dict[tuple[int, int, int], str]] = {}
    moves: ClassVar[frozenset[int]] = frozenset()

    def recognises(self, cls: type) -> bool:
        """Return whether `cls` is an array type of this framework; no import happens."""
        return protocol.root_module(cls) in self.roots and hasattr(cls, "__dlpack__")

    def import_module(self, call: str = "convert") -> Any:
        """Import and return the framework.

        Raises:
            FrameworkMissingError: it is not installed; the text begins with `call`.
        """
        if registry.is_loaded(self.module):
            return sys.modules[self.module]
        try:
            return registry.load(import_module, self.module)
        except not_from_handler(ImportError) as error:
            raise FrameworkMissingError(
                f"{call}: {self.name} is not installed here ({error}); {self._advice()}"
            ) from error

    def _advice(self) -> str:
        if self.extra:
            return f"pip install 'dlbridge[{self.extra}]'"
        return f"install the package that has its module {self.module!r}"

    def array_type(self) -> type | None:
        """Return the exact type whose objects `convert` to this framework leaves as they are."""
        return None

    def classify(self, cls: type) -> CPath | None:
        """Return (kind, payload) of the C path for objects of exactly `cls`, or None for none.

        An optional third item, values, reads what that path declines where a copy is allowed:
        values(x) is a NumPy array that nothing else refers to, or None where Python decides.
        """
        return None

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Return a Tensor over `x`, resolved or refused where its memory alone would be wrong."""
        return protocol.take(x, policy, context)

    def columns(self, x: Any) -> list[tuple[str, Any]] | None:
        """Return the columns of a table by their names, or None where `x` is none."""
        return None

    def gives_new_memory(self, iterable: Any) -> bool:
        """Return whether each item of a loader of this framework has memory never written again."""
        return False

    def take_key(self, x: Any) -> Key | None:
        """Return what the random key `x` is made of, or None where `x` is none."""
        return None

    def is_text(self, x: Any) -> bool:
        """Return whether `x` is an array of text, which no other framework has: plain data."""
        return False

    def check_export(self, x: Any, call: str) -> None:
        """Refuse an array of this framework whose export would crash the process.

        Raises:
            ExchangeError: `x` is such an array.
        """

    def limits(self) -> native.Limits:
        """Return what this framework can represent."""
        return native.Limits(self.name)

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason code why `tensor` cannot come here as it is, or None."""
        reason = self.limits().refusal(tensor)
        if reason == "dtype" and self.is_constructed(tensor):
            return None if tensor.device.is_host_accessible else "device"
        return reason

    def orders_cuda(self) -> bool:
        """Return whether work on CUDA memory is kept in order with that of this framework.

        For this a stream must be known: it names its own, waits for one, or asks a producer with
        one. Where it does none of that, its kernels may not have written yet what it hands out,
        and may still use what it has given back, so that its `limits` have no CUDA memory and
        `take` calls `require_order`.
        """
        return True

    def why_unordered(self) -> str:
        """Return why CUDA memory is refused where `orders_cuda` is false."""
        return (
            f"{self.name} has no stream in its exchange, so that its kernels and those of others "
            "cannot be ordered on CUDA memory"
        )

    def require_order(self, tensor: native.TensorBase, x: object) -> None:
        """Refuse CUDA memory that `x` of this framework has handed out, without an order.

        Raises:
            ExchangeError: with reason "device".
        """
        if tensor._device_pair[0] in device.CUDA_TYPES and not self.orders_cuda():
            raise ExchangeError(
                "device",
                f"from_dlpack: the {protocol.describe(x)} is on {tensor.device}: "
                f"{self.why_unordered()}; copy it to the host first: {self.to_host}",
            )

    def import_copies(self, tensor: native.TensorBase) -> str | None:
        """Return why the framework's own import copies `tensor`, or None where it shares."""
        return "dtype" if self.is_constructed(tensor) else None

    def is_constructed(self, tensor: native.TensorBase) -> bool:
        """Return whether the framework has the dtype, but takes it from NumPy's arrays alone.

        These are read by the framework's own constructor, which copies.
        """
        name = self.constructed.get(tensor._dtype_triple)
        return name is not None and self.constructs(name)

    def constructed_limits(self) -> native.Limits:
        """Return what its constructor can be given, as an array of NumPy."""
        return native.Limits(
            self.name,
            dtypes=list(self.constructed),
            devices=[1],
            protects_readonly=True,
            padded=True,
        )

    def constructs(self, name: str) -> bool:
        """Return whether the installed version makes arrays of a dtype among `constructed`."""
        return False

    def untraced(self) -> Any:
        """Return what shows that no function is traced now; None: arrays are always as they are."""
        return None

    def stream(self, device: int) -> int:
        """Return the stream on which this framework works now on a CUDA device, as DLPack does.

        Its exchange table says which, where it has one; else it is dlbridge's own current stream.
        """
        kind = self.array_type()
        table = protocol.table_of(kind) if kind is not None else None
        if table is None:
            return native.cuda_current_stream(device)
        return native.table_stream(table, (_CUDA, device))

    def place(self, policy: Policy) -> Any:
        """Return the framework's own device of the host that the policy names, None for none.

        Only frameworks that have several CPU devices look; elsewhere the host is one device.

        Raises:
            ExchangeError: reason "device", there is no such device.
        """
        return None

    def place_of(self, x: Any) -> Any:
        """Return the framework's own device of the host on which `x` lies, None where any will do.

        A copy of `x` stays there if the policy names no device.
        """
        return None

    def device_scope(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what makes this thread's device for new arrays that of another thread.

        The other one enters it: each thread has a setting of its own.
        """
        return nullcontext

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

    def prove(self) -> str:
        """Find out in another process whether the fastest path holds for the installed version.

        Returns:
            One sentence: it does, from now on.

        Raises:
            DLBridgeError: it does not, or nothing of this framework needs a proof.
        """
        raise ArgumentError(f"prove: every version of {self.name} takes the same path")

    def start(self, converter: native.Converter) -> None:
        """Open the C path of `to_<name>` where there is one; called once, after the import."""

    def allocate(self, shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
        """Return a new array for a kernel's result on the device of `like`; None: not its concern.

        It is asked for memory that the host cannot reach.
        """
        return None

    def copied(
        self, tensor: native.TensorBase, device: tuple[int, int], order: str
    ) -> native.TensorBase:
        """Return a copy of `tensor` on a device, complete; one of the two is among `moves`."""
        raise NotImplementedError

    def order(self, tensor: native.TensorBase, stream: Any) -> None:
        """Have the framework's own stream, or queue, wait for `tensor`, which is among `moves`."""
        raise NotImplementedError

    def cuda_allocator(self) -> Allocator:
        """Return the framework's own allocator of device memory; called where it `allocates`."""
        raise ArgumentError(f"set_allocator: {self.name} lends no allocator")

    # ---- names of dtypes and devices ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        """Return the DLDataType fields of a dtype object of the framework."""
        raise dtype.unsupported(x)

    def how_to_cast(self, x: str, wanted: DType) -> str:
        """Return how its own tensor, called `x`, is cast, for texts."""
        return self.to_dtype.format(x=x, dtype=wanted.name)

    def make_dtype(self, name: str) -> Any:
        """Return the framework's dtype object for a DType's name; AttributeError for none."""
        raise ArgumentError(f"DType.to: {self.name} has no dtype objects")

    def read_device(self, x: Any) -> tuple[int, int]:
        """Return the DLDevice fields of a device object of the framework."""
        raise device.unsupported(x)

    def make_device(self, kind: str, number: int) -> Any:
        """Return the framework's device object; `kind` is one of the values of `device_names`."""
        raise ArgumentError(f"Device.to: {self.name} has no device objects")


# By address, since a metaclass may forbid its classes to be hashed, or call all of them equal.
_BY_TYPE: dict[int, tuple[ref[type], Framework | Literal[False]]] = {}
_CONVERTERS: dict[str, native.Converter] = {}
_STARTED: set[str] = set()


def _forget_types(_row: registry.Row) -> None:
    _BY_TYPE.clear()
    native.forget_types()


# A type seen before may be of a framework that is registered later.
registry.for_each(_forget_types)


def adapter(name: str) -> Framework:
    """Return the adapter called `name`; its framework is not imported."""
    return cast("Framework", registry.adapter(name))


def load_binding(name: str) -> Any:
    """Return the binding of kernels to the framework `name`, imported now; None without its own.

    Raises:
        ArgumentError: no framework is called so.
        FrameworkMissingError: the binding needs the framework, which is not installed.
    """
    module = registry.load(import_module, registry.row(name, "kernels").package)
    if not hasattr(module, "__path__") or find_spec(f"{module.__name__}.binding") is None:
        return None
    try:
        return load_module(name, "binding").BINDING
    except ModuleNotFoundError:
        # Raises FrameworkMissingError if that is what is missing.
        adapter(name).import_module(f"kernel.{registry.row(name).name}")
        raise


def load_module(name: str, part: str) -> ModuleType:
    """Return a module of the package of the framework `name`, imported now."""
    return registry.load(import_module, f"{registry.row(name).package}.{part}")


def is_installed(name: str) -> bool:
    """Return whether the framework of the adapter `name` can be imported, without importing it."""
    module = adapter(name).module
    return module in sys.modules or find_spec(module.partition(".")[0]) is not None


def require_importable(module: str, call: str) -> None:
    """Refuse to import a module now where that would end the process.

    Args:
        module: a top-level module that `not_before` of some framework names.
        call: what needs it, for the text.

    Raises:
        ArgumentError: a framework is imported after which it crashes, and it is not.
    """
    if module in sys.modules or find_spec(module) is None:
        return
    for row in registry.rows():
        if any(map(registry.is_loaded, row.roots)) and module in adapter(row.name).not_before:
            raise ArgumentError(
                f"{call} imports {module}, which ends the process once {row.name} is imported; "
                f"import {module} before {row.name}"
            )


def adapter_of_type(cls: type) -> Framework | None:
    """Return the adapter that recognises `cls` or the nearest of its bases, or None."""
    number = id(cls)
    known = _BY_TYPE.get(number)
    if known is None:
        forget = ref(cls, partial(_BY_TYPE.pop, number))  # in C, as in `registry.lock`
        known = _BY_TYPE[number] = forget, _find_adapter(cls)
    return known[1] or None


def _find_adapter(cls: type) -> Framework | Literal[False]:
    for base in cls.__mro__:
        row = registry.row_of_root(protocol.root_module(base))
        if row is not None and adapter(row.name).recognises(base):
            return adapter(row.name)
    return False


def holder_of_type(cls: type) -> Holder | None:
    """Return the library whose objects of `cls`, or of its nearest base, hold one tensor each."""
    for base in cls.__mro__:
        found = _holder(protocol.root_module(base))
        if found is not None and found.recognises(base):
            return found
    return None


def columns_of(x: object) -> list[tuple[str, Any]] | None:
    """Return the columns of a table by their names, or None for any other object."""
    for base in type(x).__mro__:
        root = protocol.root_module(base)
        row = registry.row_of_root(root)
        found = adapter(row.name) if row is not None else _holder(root)
        columns = None if found is None else found.columns(x)
        if columns is not None:
            return columns
    return None


def _holder(root: str) -> Holder | None:
    row = registry.holder_of_root(root)
    if row is None:
        return None
    found: Holder = registry.load(import_module, row.package).HOLDER
    return found


def mover(*devices: int) -> Framework | None:
    """Return the imported framework that alone reaches memory of one of these device types."""
    for row in registry.rows():
        if any(root in sys.modules for root in row.roots):
            found = adapter(row.name)
            if found.moves.intersection(devices):
                return found
    return None


def target(to: object, call: str = "convert") -> Framework:
    """Return the adapter meant by `to`: a name, a module, or an array type.

    Raises:
        ArgumentError: there is none; the text begins with `call`.
    """
    if isinstance(to, str):
        return adapter(registry.row(to, call).name)
    if isinstance(to, type):
        found = adapter_of_type(to)
        if found is not None:
            return found
    row = registry.row_of_root(str(getattr(to, "__name__", "")).partition(".")[0])
    if row is not None:
        return adapter(row.name)
    swapped = ""
    if not isinstance(to, (str, type)) and (protocol.is_spoken_by(to) or protocol.advise(to)):
        swapped = f"; what is converted comes first: {call}(x, to)"
    raise ArgumentError(
        f"{call}: `to` must be a framework's name, module or array type, "
        f"got {protocol.describe(to)}{swapped}"
    )


def classify(cls: type) -> CPath | None:
    """Answer the core's question which C path takes objects of exactly `cls`."""
    return registry.load(_classify, cls)


def _classify(cls: type) -> CPath | None:
    found = adapter_of_type(cls)
    if found is not None:
        return found.classify(cls)
    if cls in protocol.MEMORY:
        return "buffer", None
    table = protocol.table_of(cls)
    if table is not None:
        return "table", table
    if not callable(getattr(cls, "__dlpack__", None)):
        return None
    return "dlpack", protocol.is_old_producer(cls)


def add_converter(name: str, converter: native.Converter) -> None:
    """Make `converter` the C path of conversions to `name`."""
    _CONVERTERS[name] = converter
    native.set_hooks(converters=_CONVERTERS)


def converter_of(framework: Framework) -> native.Converter | None:
    """Return the converter to a framework that has been started, or None where it has none."""
    return _CONVERTERS.get(framework.name)


def converter(name: str) -> native.Converter:
    """Return the converter to the framework `name`, opened if it has a C path."""
    start(adapter(name))
    return _CONVERTERS[name]


def start(framework: Framework, call: str | None = None) -> None:
    """Import `framework` if need be and open its C path, once.

    Raises:
        FrameworkMissingError: it is not installed; the text begins with `call`, by default
            `to_<name>`.
    """
    if framework.name not in _STARTED:
        registry.load(_start, framework, call or f"to_{framework.name}")


def _start(framework: Framework, call: str) -> None:
    framework.import_module(call)
    if framework.name in _CONVERTERS:
        framework.start(_CONVERTERS[framework.name])
    _STARTED.add(framework.name)
