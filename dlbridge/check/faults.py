"""Synthetic DLPack producers and consumers, right or wrong, without GPU or framework.

Written with ctypes from the text of the standard; nothing of the core is used, so that the core is
never checked only against itself. The data of a capsule for a GPU is an address that nobody reads.

    Description   what a DLTensor shall say, lies included
    Producer      lends capsules that say it; one class per style of `__dlpack__`
    Loan          one managed tensor that was lent: how often and where its deleter was called
    Consumer      takes a capsule as the standard demands, reads it, and releases it as told
    Table         a C exchange table made of Python functions

A producer of a read-only tensor on a GPU, and what a consumer finds in its capsule:

    >>> from dlbridge.check import faults
    >>> what = faults.Description(shape=(2, 3), strides=(3, 1), device=(2, 0), flags=1)
    >>> peer = faults.ModernProducer(what)
    >>> found = faults.Consumer(peer.__dlpack__(max_version=(1, 3)))
    >>> found.device, found.flags, found.strides
    ((2, 0), 1, (3, 1))
    >>> found.release(times=2)  # a consumer that calls the deleter twice
    >>> peer.deleted
    2
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

# ---- the standard ------------------------------------------------------------------------------

LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
USED_LEGACY, USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
TABLE = b"dlpack_exchange_api"
for _name in (LEGACY, VERSIONED, USED_LEGACY, USED_VERSIONED, TABLE):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_name))  # a capsule may outlive this module

READ_ONLY, IS_COPIED, SUBBYTE_PADDED = 1, 2, 4
CPU, CUDA, OPENCL, EXT_DEV = 1, 2, 4, 12

# (code, bits, lanes) of the dtypes that NumPy has.
DTYPES: dict[str, tuple[int, int, int]] = {
    "bool": (6, 8, 1),
    "int8": (0, 8, 1),
    "int16": (0, 16, 1),
    "int32": (0, 32, 1),
    "int64": (0, 64, 1),
    "uint8": (1, 8, 1),
    "uint16": (1, 16, 1),
    "uint32": (1, 32, 1),
    "uint64": (1, 64, 1),
    "float16": (2, 16, 1),
    "float32": (2, 32, 1),
    "float64": (2, 64, 1),
    "complex64": (5, 64, 1),
    "complex128": (5, 128, 1),
}
_NUMPY_NAMES = {triple: name for name, triple in DTYPES.items()}


class DLTensor(ctypes.Structure):
    """The view, 48 bytes."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    """DLManagedTensor, 64 bytes."""

    _fields_: ClassVar = [
        ("dl", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, 80 bytes."""

    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl", DLTensor),
    ]


SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
Allocate = ctypes.PYFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(DLTensor),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    SetError,
)
FromPy = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
ToPy = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
Borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class ExchangeTable(ctypes.Structure):
    """DLPackExchangeAPI: a header and five functions."""

    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_py", ctypes.c_void_p),
        ("to_py", ctypes.c_void_p),
        ("borrow", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# ---- capsules ----------------------------------------------------------------------------------

_API = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _API)
)
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _API))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _API)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _API)
)
# A capsule that is being destroyed must not be made a py_object again: that would revive it.
_dying_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _API)
)
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _API)
)


def make_capsule(address: int, name: bytes, destructor: int | None = None) -> Any:
    """Return a capsule; `name` must live as long as the process does, as the constants do."""
    return _new(address, name, destructor)


def capsule_name(capsule: object) -> str:
    """Return the name a capsule has now."""
    return str(_get_name(capsule).decode())


def capsule_address(capsule: object) -> int:
    """Return the address that a capsule holds, under whatever name."""
    return int(_get_pointer(capsule, _get_name(capsule)))


def exported(tensor: Any, versioned: bool) -> object:
    """Return a capsule of either kind, as a consumer requests it."""
    return tensor.__dlpack__(max_version=(1, 3) if versioned else None)


def _destroy(capsule: int) -> None:
    """Call the deleter of a capsule that nobody took: one that still has its first name."""
    for name, struct in ((LEGACY, Legacy), (VERSIONED, Versioned)):
        if _dying_is(capsule, name):
            address = _dying_pointer(capsule, name)
            call_deleter(address, struct)


destroy_capsule = Deleter(_destroy)


def call_deleter(address: int, struct: type[Legacy | Versioned]) -> None:
    """Call the deleter of the managed tensor at `address`, if it has one; without the GIL."""
    deleter = struct.from_address(address).deleter
    if deleter:
        Deleter(deleter)(address)


def delete_on_thread(address: int, struct: type[Legacy | Versioned]) -> None:
    """Call the deleter on a thread that Python has not made, and wait for it."""
    deleter = struct.from_address(address).deleter
    if not deleter:
        return
    library, thread = ctypes.CDLL(None), ctypes.c_ulong()
    failed = library.pthread_create(
        ctypes.byref(thread), None, ctypes.c_void_p(deleter), ctypes.c_void_p(address)
    )
    if failed:
        raise OSError(failed, "pthread_create failed")
    library.pthread_join(thread, None)


# ---- the producer ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The fields of a DLTensor. `strides` (elements) None is a NULL pointer; so is `shape` None.

    Attributes:
        shape: extents.
        strides: in elements.
        ndim: the length of `shape` unless given.
        dtype: (code, bits, lanes).
        device: (type number, id).
        data: an address; None is a NULL pointer.
        byte_offset: in bytes.
        flags: the bits of a versioned capsule.
        version: (major, minor) of a versioned capsule.
        has_deleter: False is a NULL deleter.
        on_delete: called by the deleter, such as `slow(0.1)` or `raising(ValueError())`.
        keeps: what is kept alive until the deleter is called, such as the owner of the data.
    """

    shape: tuple[int, ...] | None = (3,)
    strides: tuple[int, ...] | None = (1,)
    ndim: int | None = None
    dtype: tuple[int, int, int] = (2, 32, 1)
    device: tuple[int, int] = (CPU, 0)
    data: int | None = None
    byte_offset: int = 0
    flags: int = 0
    version: tuple[int, int] = (1, 3)
    has_deleter: bool = True
    on_delete: Callable[[], object] | None = None
    keeps: object = None

    def but(self, **changes: Any) -> Description:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def slow(seconds: float) -> Callable[[], object]:
    """Return what makes a deleter take `seconds`, with the GIL released."""
    return lambda: time.sleep(seconds)


def raising(error: BaseException) -> Callable[[], object]:
    """Return what makes a deleter raise: Python reports it to `sys.unraisablehook`."""

    def fail() -> None:
        raise error

    return fail


def describe(array: np.ndarray[Any, Any], **changes: Any) -> Description:
    """Return the truth about a NumPy array, then changed as asked."""
    truth = Description(
        shape=array.shape,
        strides=tuple(stride // array.itemsize for stride in array.strides),
        dtype=DTYPES[array.dtype.name],
        data=array.ctypes.data,
        flags=0 if array.flags.writeable else READ_ONLY,
        keeps=array,
    )
    return truth.but(**changes)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Loan:
    """One managed tensor that was lent, and what became of it.

    It stays alive on its own until its deleter is called, and afterwards for as long as the
    producer does, so that a second call is counted instead of crashing.
    """

    struct: Legacy | Versioned
    shape: Any
    strides: Any
    keeps: object
    after: Callable[[], object] | None = None
    deleted: int = 0
    threads: list[int] = field(default_factory=list)

    @property
    def address(self) -> int:
        """Where the managed tensor is."""
        return ctypes.addressof(self.struct)

    def on_delete(self) -> None:
        """Count, and make everything that a late reader would read wrong."""
        self.deleted += 1
        self.threads.append(threading.get_ident())
        for dims in (self.shape, self.strides):
            for i in range(len(dims) if dims is not None else 0):
                dims[i] = 0x5AD5AD5AD5AD5AD5
        self.keeps = None
        if self.after is not None:
            self.after()


_outstanding: dict[int, Loan] = {}
_known: WeakValueDictionary[int, Loan] = WeakValueDictionary()


def _on_delete(address: int) -> None:
    loan = _known.get(address)
    try:
        if loan is not None:
            loan.on_delete()
    finally:
        _outstanding.pop(address, None)


_delete = Deleter(_on_delete)


def make_struct(what: Description, versioned: bool) -> tuple[Legacy | Versioned, Any, Any]:
    """Return a managed tensor without deleter, and the arrays its pointers go to."""
    struct = Versioned() if versioned else Legacy()
    if isinstance(struct, Versioned):
        struct.major, struct.minor = what.version
        struct.flags = what.flags
    shape = strides = None
    if what.shape is not None:
        shape = (ctypes.c_int64 * len(what.shape))(*what.shape)
        struct.dl.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    if what.strides is not None:
        strides = (ctypes.c_int64 * len(what.strides))(*what.strides)
        struct.dl.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    struct.dl.ndim = len(what.shape or ()) if what.ndim is None else what.ndim
    struct.dl.code, struct.dl.bits, struct.dl.lanes = what.dtype
    struct.dl.device_type, struct.dl.device_id = what.device
    struct.dl.data = what.data
    struct.dl.byte_offset = what.byte_offset
    return struct, shape, strides


def lend(what: Description, versioned: bool) -> Loan:
    """Make a managed tensor; whoever holds its address must call its deleter."""
    struct, shape, strides = make_struct(what, versioned)
    loan = Loan(struct, shape, strides, what.keeps, what.on_delete)
    struct.context = loan.address
    struct.deleter = ctypes.cast(_delete, ctypes.c_void_p).value if what.has_deleter else None
    _known[loan.address] = loan
    if what.has_deleter:
        _outstanding[loan.address] = loan
    return loan


class Producer:
    """An object that exports what a Description says, as a library of today would.

    `loans` lists every managed tensor it lent, `calls` the keywords of every `__dlpack__`.
    """

    def __init__(self, what: Description | np.ndarray[Any, Any], device: object = None) -> None:
        self.what = describe(what) if isinstance(what, np.ndarray) else what
        self.device = self.what.device if device is None else device
        self.loans: list[Loan] = []
        self.calls: list[dict[str, object]] = []

    @property
    def deleted(self) -> int:
        """How often deleters were called, all loans together."""
        return sum(loan.deleted for loan in self.loans)

    def capsule(self, versioned: bool = True) -> Any:
        """Return a new capsule with a destructor that follows the standard."""
        loan = lend(self.what, versioned)
        self.loans.append(loan)
        destructor = ctypes.cast(destroy_capsule, ctypes.c_void_p).value
        return make_capsule(loan.address, VERSIONED if versioned else LEGACY, destructor)

    def __dlpack_device__(self) -> object:
        return self.device


class ModernProducer(Producer):
    """Knows every keyword, and gives what was asked for."""

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: object = None,
        copy: bool | None = None,
    ) -> object:
        self.calls.append(
            {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        )
        return self.capsule(versioned=max_version is not None and max_version[0] >= 1)


class StreamOnlyProducer(Producer):
    """From before 2023.12: knows `stream` and nothing else (NumPy 1.23)."""

    def __dlpack__(self, *, stream: object = None) -> object:
        self.calls.append({"stream": stream})
        return self.capsule(versioned=False)


class BareProducer(Producer):
    """Takes no keyword at all."""

    def __dlpack__(self) -> object:
        self.calls.append({})
        return self.capsule(versioned=False)


class LegacyProducer(Producer):
    """Takes every keyword and heeds none, like JAX, TensorFlow and MLX."""

    def __dlpack__(self, **keywords: object) -> object:
        self.calls.append(keywords)
        return self.capsule(versioned=False)


class VersionedProducer(Producer):
    """Gives a versioned capsule also to who did not ask for one."""

    def __dlpack__(self, **keywords: object) -> object:
        self.calls.append(keywords)
        return self.capsule(versioned=True)


class RaisingProducer(Producer):
    """Takes every keyword and raises `exception` from inside."""

    exception: BaseException = BufferError("the peer refuses")

    def __dlpack__(self, **keywords: object) -> object:
        self.calls.append(keywords)
        raise self.exception


class NoneProducer(Producer):
    """Returns None, as a function whose `return` was forgotten."""

    def __dlpack__(self, **keywords: object) -> object:
        self.calls.append(keywords)
        return None


# Those that a consumer of today must be able to import from.
STYLES: dict[str, type[Producer]] = {
    "modern": ModernProducer,
    "stream only": StreamOnlyProducer,
    "bare": BareProducer,
    "always legacy": LegacyProducer,
    "always versioned": VersionedProducer,
}

# ---- the consumer ------------------------------------------------------------------------------


class Consumer:
    """Takes a capsule: reads the name, renames, and from then on answers for the deleter.

    The fields are what the struct says; `strides` is None where the pointer is NULL.
    """

    def __init__(self, capsule: object) -> None:
        name = _get_name(capsule)
        if name not in (LEGACY, VERSIONED):
            msg = f"not a fresh DLPack capsule: {name!r}"
            raise ValueError(msg)
        self.versioned = name == VERSIONED
        self.address = _get_pointer(capsule, name)
        _set_name(capsule, USED_VERSIONED if self.versioned else USED_LEGACY)
        self.struct_type: type[Legacy | Versioned] = Versioned if self.versioned else Legacy
        self.released = False
        self._read(self.struct_type.from_address(self.address))

    def _read(self, struct: Legacy | Versioned) -> None:
        dl = struct.dl
        self.version = (struct.major, struct.minor) if isinstance(struct, Versioned) else None
        self.flags = struct.flags if isinstance(struct, Versioned) else 0
        self.has_deleter = bool(struct.deleter)
        self.data: int = dl.data or 0
        self.device = (dl.device_type, dl.device_id)
        self.dtype = (dl.code, dl.bits, dl.lanes)
        self.ndim = dl.ndim
        self.shape = tuple(dl.shape[: dl.ndim]) if dl.shape else None
        self.strides = tuple(dl.strides[: dl.ndim]) if dl.strides else None
        self.byte_offset = dl.byte_offset

    def values(self) -> np.ndarray[Any, Any]:
        """Return a copy of the elements, fetched one after the other from where they are."""
        if self.released:
            msg = "read after release"
            raise ValueError(msg)
        dtype = np.dtype(_NUMPY_NAMES[self.dtype])
        shape = self.shape or ()
        out = np.empty(shape, dtype)
        steps = self.strides if self.strides is not None else row_major(shape)
        for index in np.ndindex(*shape):
            at = sum(i * step for i, step in zip(index, steps, strict=True))
            address = self.data + self.byte_offset + at * dtype.itemsize
            out[index] = np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)[0]
        return out

    def release(self, *, times: int = 1, off_thread: bool = False) -> None:
        """Call the deleter without the GIL: once, as it must be, or as often as told.

        Args:
            times: how often; 2 is a fault.
            off_thread: on a thread of the operating system that Python has not made.

        Raises:
            ValueError: it was released before.
            OSError: the thread cannot be made.
        """
        if self.released:
            msg = "released twice"
            raise ValueError(msg)
        self.released = True
        for _ in range(times):
            if off_thread:
                delete_on_thread(self.address, self.struct_type)
            else:
                call_deleter(self.address, self.struct_type)

    def release_after_python(self) -> None:
        """Have the deleter called when the process ends, after the interpreter was finalised.

        Only a deleter that is no Python function survives that.
        """
        self.released = True
        deleter = self.struct_type.from_address(self.address).deleter
        if deleter:
            at_exit = getattr(ctypes.CDLL(None), "__cxa_atexit")
            at_exit(ctypes.c_void_p(deleter), ctypes.c_void_p(self.address), None)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return compact row-major strides, in elements; an extent of 0 counts as 1."""
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))


# ---- exchange tables ---------------------------------------------------------------------------


class Table:
    """A C exchange table over Python functions; it is never freed, as the standard demands.

    Its objects have an attribute `producer`, whose description they export. Each function may be
    replaced by an address (0 is NULL), for what only C can do.
    """

    _immortal: ClassVar[list[object]] = []

    def __init__(
        self,
        *,
        version: tuple[int, int] = (1, 3),
        previous: Table | None = None,
        **addresses: int | None,
    ) -> None:
        self.used: list[str] = []
        self.given: list[Consumer] = []
        self.struct = ExchangeTable()
        self.struct.major, self.struct.minor = version
        self.struct.previous = ctypes.addressof(previous.struct) if previous else None
        functions = {
            "allocate": Allocate(self._allocate),
            "from_py": FromPy(self._from_py),
            "to_py": ToPy(self._to_py),
            "borrow": Borrow(self._borrow),
            "stream": Stream(self._stream),
        }
        for name, function in functions.items():
            own = ctypes.cast(function, ctypes.c_void_p).value
            setattr(self.struct, name, addresses.get(name, own))
        self._immortal.append((self, functions))

    @property
    def capsule(self) -> Any:
        """Return the capsule that a type carries as `__dlpack_c_exchange_api__`."""
        return make_capsule(ctypes.addressof(self.struct), TABLE)

    def make_type(self, **attributes: object) -> type[Any]:
        """Return a new type that carries this table and no `__dlpack__`, unless given."""

        def remember(self: Any, producer: Producer) -> None:
            self.producer = producer

        body = {"__init__": remember, "__dlpack_c_exchange_api__": self.capsule, **attributes}
        return type("Peer", (), body)

    def _from_py(self, x: Any, out: Any) -> int:
        self.used.append("from_py")
        loan = lend(x.producer.what, versioned=True)
        x.producer.loans.append(loan)
        out[0] = loan.address
        return 0

    def _to_py(self, managed: int, out: Any) -> int:
        """Make an object of it: here a Consumer, which is kept and given with one reference."""
        self.used.append("to_py")
        result = Consumer(make_capsule(managed, VERSIONED))
        self.given.append(result)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
        out[0] = id(result)
        return 0

    def _borrow(self, x: Any, out: Any) -> int:
        self.used.append("borrow")
        struct, shape, strides = make_struct(x.producer.what, versioned=True)
        x.producer.borrowed = (shape, strides)
        out[0] = struct.dl
        return 0

    def _allocate(self, prototype: Any, out: Any, context: int, set_error: Any) -> int:
        self.used.append("allocate")
        dl = prototype[0]
        shape = tuple(dl.shape[: dl.ndim])
        triple = (dl.code, dl.bits, dl.lanes)
        if triple not in _NUMPY_NAMES:
            set_error(context, b"TypeError", b"the peer allocates NumPy's dtypes only")
            return -1
        loan = lend(describe(np.zeros(shape, _NUMPY_NAMES[triple])), versioned=True)
        out[0] = loan.address
        return 0

    def _stream(self, device_type: int, device_id: int, out: Any) -> int:
        self.used.append("stream")
        out[0] = None
        return 0
