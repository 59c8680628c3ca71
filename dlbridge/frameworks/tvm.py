"""TVM: tensors of tvm_ffi, which are those of TVM's own runtime as soon as TVM is imported."""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import Any, ClassVar

from dlbridge import device, dtype
from dlbridge._core import native
from dlbridge.cuda.driver import LEGACY, NONE
from dlbridge.errors import ExchangeError
from dlbridge.exchange import ordering, protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy, unrecorded_context
from dlbridge.signals import not_from_handler

_COMPLEX = 5
_WIDTHS: dict[int, tuple[int, ...]] = {
    0: (1, 2, 4, 8, 16, 32, 64),
    1: (1, 2, 4, 8, 16, 32, 64),
    2: (16, 32, 64),
    3: (64,),
    4: (16,),
    6: (8,),
    **dict.fromkeys(range(7, 15), (8,)),
    15: (6,),
    16: (6,),
    17: (4,),
}


class Tvm(Framework):
    """tvm_ffi.Tensor, and tvm.runtime.Tensor, which is a kind of it."""

    name = "tvm"
    extra = "tvm"
    module = "tvm_ffi"
    to_dtype = 'dlbridge.to_tvm({x}, dtype="{dtype}")'
    roots = ("tvm_ffi", "tvm")
    taken_by = "tvm_ffi object"
    way_in = "tvm_ffi object"
    way_out = "tvm_ffi capsule"
    zero_copy = "both ways"
    notes = "every device; with TVM itself loaded: 64-byte aligned and row-major, else copied"
    quirks = (
        Quirk(
            6,
            "0.1",
            "accepts a negative ndim, negative extents and overflowing shapes",
            "refused before",
            "Do not hand tvm_ffi capsules of unknown origin",
        ),
        Quirk(
            9,
            "0.1",
            "exports views with byte_offset",
            "folded into the data pointer",
            "Consumers must add byte_offset to data",
        ),
        Quirk(
            12,
            "0.1",
            "accepts 0 lanes, unknown type codes and floats of 24 bits",
            "refused: lanes or dtype",
            "Do not hand tvm_ffi capsules of unknown origin",
        ),
        Quirk(
            17,
            "0.1",
            "ignores copy and dl_device for a legacy capsule",
            "not asked",
            "Ask for max_version=(1, 0), or copy first",
        ),
        Quirk(
            20,
            "0.1",
            "refuses versioned capsules it did not ask for",
            "gets a legacy one",
            "Export without max_version for tvm_ffi",
            sign=Sign("refused", traits=("read-only",)),
        ),
        Quirk(
            28,
            "0.1",
            "max_version=(0, 8) is an AttributeError",
            "not asked",
            "Ask for (1, 0) or later, or without max_version",
        ),
        Quirk(
            30,
            "0.27",
            "TVM takes row-major memory only",
            "copied, or refused: strides",
            "Copy other layouts to row-major memory first",
            of="tvm",
        ),
        Quirk(
            40,
            "0.1",
            "checks neither major version nor READ_ONLY",
            "refused before",
            "Write to read-only memory only after a copy",
        ),
    )
    expressions = Expressions(
        {"tvm_ffi": "tvm_ffi"},
        make="tvm_ffi.from_dlpack(a)",
        from_dlpack="tvm_ffi.from_dlpack({})",
        values="values(x)",
        address="x.data_ptr()",
        is_view=True,
    )
    has_streams = True
    device_names: ClassVar[dict[int, str]] = {int(kind): kind.name for kind in device.DeviceType}

    def recognises(self, cls: type) -> bool:
        tvm_ffi = sys.modules.get("tvm_ffi")
        return tvm_ffi is not None and issubclass(cls, tvm_ffi.Tensor)

    def array_type(self) -> type | None:
        """Return the class of which tvm_ffi makes its tensors now: TVM replaces it."""
        return type(_import(self.import_module(), native.allocate((0,), (2, 32, 1))))

    def classify(self, cls: type) -> tuple[str, object] | None:
        """Return the C path, but none for a class that TVM brought after the converter's start."""
        if cls not in (_OWN or [cls]):
            return None
        export = getattr(cls, "__dlpack__", None)
        own: Any = self.import_module().Tensor
        is_own = export is own.__dlpack__
        if is_own and callable(handle := getattr(own, "__chandle__", None)):
            return "tvm", (handle, partial(self._lend, export))
        if is_own and hasattr(own, "_to_dlpack"):
            export = own._to_dlpack  # what it calls without arguments
        if export is None:
            return None
        return "capsule", (export, None, None, -1, 0, partial(self._lend, export))

    def _lend(self, export: Any, x: Any) -> tuple[object, int, int, None] | None:
        """Return what the C path takes of a tensor in CUDA memory, and its stream."""
        device = x.__dlpack_device__()
        if not ordering.has_streams(device):
            return None
        stream, _ = _streams(device[1])
        return export(x), stream, stream, None

    def check_export(self, x: Any, call: str) -> None:
        """Refuse a tensor without an object: to export it, tvm_ffi would read a null pointer."""
        if _has_no_object(x):
            raise ExchangeError(
                "producer",
                f"{call}: this tvm_ffi.Tensor has no object that owns its memory: it was moved "
                "from, or is a view for the time of a callback; pass a tensor that owns its memory",
            )

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take a tensor as C does, or by a legacy capsule: tvm_ffi knows no flag to lose."""
        held = native.look(x)
        if held is not None:
            context.route.append(self.taken_by)
            return held
        context.route.append("tvm_ffi capsule")
        self.check_export(x, "from_dlpack")
        try:
            tensor = native.take_capsule(x.__dlpack__())
        except not_from_handler(Exception) as error:
            raise protocol.refused(x, error) from error
        if ordering.has_streams(tensor._device_pair):
            ordering.note_producer(tensor, self.stream(tensor._device_pair[1]))
        return tensor

    def stream(self, device: int) -> int:
        """Return the stream of tvm_ffi's environment on a CUDA device."""
        self.import_module()
        return _streams(device)[0]

    def limits(self) -> native.Limits:
        return _STRICT if "tvm" in sys.modules else _LOOSE

    def refusal(self, tensor: native.TensorBase) -> str | None:
        """Return the reason against `tensor`: any lanes are fine, complex numbers have no name."""
        return "dtype" if tensor._dtype_triple[0] == _COMPLEX else self.limits().refusal(tensor)

    def start(self, converter: native.Converter) -> None:
        """Open the C path.

        tvm_ffi itself refuses no memory that TVM's compiled code could not take.
        """
        dtypes = [(code, bits, 1) for code, widths in _WIDTHS.items() for bits in widths]
        _OWN[:] = [self.array_type()]
        limits = native.Limits("tvm", dtypes=dtypes, needed_by="tvm", **_TVM_LAYOUT)
        table = _find_table(self.import_module(), _OWN[0])
        if table is not None:
            converter.activate("table", limits, table, _OWN[0])
        else:
            into = self.import_module().from_dlpack
            converter.activate("capsule", limits, into, _OWN[0], streams=_streams)

    def entry(self, tensor: native.TensorBase | None) -> str:
        return "tvm_ffi.from_dlpack"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        stream = NONE if context.stream is None else context.stream
        return _import(self.import_module(), tensor, stream)

    # ---- names of dtypes and devices ----

    def read_dtype(self, x: Any) -> tuple[int, int, int]:
        return dtype.read_named(x, str(x).rpartition(".")[2])

    def make_dtype(self, name: str) -> Any:
        return self.import_module("DType.to").dtype(name)

    def read_device(self, x: Any) -> tuple[int, int]:
        if hasattr(x, "dlpack_device_type"):
            return x.dlpack_device_type(), x.index
        return x.device_type, x.device_id

    def make_device(self, kind: str, number: int) -> Any:
        return self.import_module("Device.to").device(int(device.DeviceType[kind]), number)


def _has_no_object(x: Any) -> bool:
    """Return whether a tensor is a view without an owner, or was moved from."""
    handle = getattr(x, "__chandle__", None)
    return callable(handle) and handle() == 0


@cache
def _cuda(device: int) -> Any:
    """Return tvm_ffi's name of a CUDA device."""
    return ADAPTER.import_module().device("cuda", device)


def _streams(device: int) -> tuple[int, int]:
    """Return twice the stream of tvm_ffi's environment on a CUDA device."""
    stream: int = sys.modules["tvm_ffi"].get_raw_stream(_cuda(device)) or LEGACY
    return stream, stream


_PROVED = ("0.1.15",)  # releases of tvm_ffi


def _find_table(tvm_ffi: Any, kind: type | None) -> object:
    """Return the C exchange table that makes tensors of `kind`, after a trip with it, or None.

    tvm_ffi's own class has none, but a wrapper for its tests, whose table imports as `from_dlpack`
    does; it has no allocator, and none is needed here. This is undocumented, so only releases that
    were tested are asked for it.
    """
    is_proved = str(tvm_ffi.__version__).startswith(_PROVED)
    wrapper = getattr(tvm_ffi.core, "DLTensorTestWrapper", None) if is_proved else None
    table = protocol.table_of(wrapper) if wrapper is not None else None
    if table is None:
        return None
    sample = native.allocate((3,), (0, 32, 1))
    trial = native.Converter("tvm", "")
    try:
        trial.activate("table", _LOOSE, table, kind)
        made: Any = unrecorded_context().run(trial, sample)
        shape = native.take_capsule(made.__dlpack__()).shape
    except not_from_handler(Exception):  # whatever fails: `from_dlpack` remains
        return None
    return table if type(made) is kind and shape == (3,) else None


def _import(tvm_ffi: Any, tensor: native.TensorBase, stream: int = NONE) -> Any:
    return tvm_ffi.from_dlpack(tensor._capsule(False, 0, True, stream))


_OWN: list[type | None] = []  # the class of the objects that the C path returns as they are
_TVM_LAYOUT: dict[str, Any] = {"alignment": 64, "layout": "row_major"}
_LOOSE = native.Limits("tvm")
_STRICT = native.Limits("tvm", **_TVM_LAYOUT)

ADAPTER = Tvm()
