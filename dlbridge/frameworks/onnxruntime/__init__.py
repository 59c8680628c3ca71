"""ONNX Runtime: the OrtValues that its sessions take and return."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.signals import not_from_handler

# ONNX's numbers of element types, TensorProto.DataType; of strings and complex numbers none.
ELEMENT_TYPES: dict[int, tuple[int, int, int]] = {
    1: (2, 32, 1),
    2: (1, 8, 1),
    3: (0, 8, 1),
    4: (1, 16, 1),
    5: (0, 16, 1),
    6: (0, 32, 1),
    7: (0, 64, 1),
    9: (6, 8, 1),
    10: (2, 16, 1),
    11: (2, 64, 1),
    12: (1, 32, 1),
    13: (1, 64, 1),
    16: (4, 16, 1),
    17: (10, 8, 1),
    18: (11, 8, 1),
    19: (12, 8, 1),
    20: (13, 8, 1),
    21: (1, 4, 1),
    22: (0, 4, 1),
    23: (17, 4, 1),
    24: (14, 8, 1),
    25: (1, 2, 1),
    26: (0, 2, 1),
}


class OnnxRuntime(Framework):
    """onnxruntime.OrtValue, and the values of the extension module that are inside them."""

    name = "onnxruntime"
    extra = "onnxruntime"
    module = "onnxruntime"
    roots = ("onnxruntime",)
    way_in = "address"
    way_out = "capsule"
    zero_copy = "both ways"
    to_host = "x.numpy()"
    to_dtype = 'dlbridge.to_onnxruntime({x}, dtype="{dtype}")'
    notes = "row-major, else copied; CPU memory; no strings, sequences or complex numbers"
    quirks = (
        Quirk(
            20,
            "1.31, 1.32",
            "never asks for a versioned capsule",
            "gets a legacy one; read-only memory is refused",
            "Pass a copy of read-only arrays",
            sign=Sign("refused", traits=("read-only",)),
        ),
        Quirk(
            30,
            "1.31, 1.32",
            "takes row-major memory only",
            "copied, or refused: strides",
            "Copy other layouts to row-major memory first",
            sign=Sign("refused", traits=("strided",)),
        ),
        Quirk(
            47,
            "1.31, 1.32",
            "a capsule of an OrtValue made of a NumPy array does not keep the array",
            "keeps the OrtValue itself",
            "Keep the OrtValue as long as anything made of its capsule or of its numpy()",
        ),
    )
    expressions = Expressions(
        {"ort": "onnxruntime"},
        make="ort.OrtValue.from_dlpack(a)",
        from_dlpack="ort.OrtValue.from_dlpack({})",
        values="values(x)",
        address="x.data_ptr()",
        is_view=True,
    )

    def array_type(self) -> type | None:
        kind: type = self.import_module().OrtValue
        return kind

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take the memory by its address: the OrtValue, unlike its capsule, keeps all owners."""
        triple = _dtype_of(x)
        if x.device_name().lower() != "cpu":
            raise ExchangeError(
                "device",
                f"from_dlpack: the {protocol.describe(x)} is on {x.device_name()!r}: "
                f"{self.why_unordered()}; copy it to the host first: {self.to_host}",
            )
        context.route.append("OrtValue")
        return native.take_object(x, x.data_ptr(), tuple(x.shape()), None, triple, (1, 0))

    def orders_cuda(self) -> bool:
        """Return False: sessions work on streams of their own, of which no OrtValue knows."""
        return False

    def limits(self) -> native.Limits:
        return _LIMITS

    def start(self, converter: native.Converter) -> None:
        """Open the C path; `from_dlpack` asks the Tensor, whose dtype it may read."""
        module = self.import_module()
        kind = module.OrtValue
        if hasattr(kind, "from_dlpack"):
            take = kind.from_dlpack if _reads_bool(module) else partial(_import, module)
            converter.activate("object", _LIMITS, take, kind)

    def entry(self, tensor: native.TensorBase | None) -> str:
        return "onnxruntime.OrtValue.from_dlpack"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        """Return an OrtValue, which keeps the memory until the runtime has released it."""
        module = self.import_module()
        if not hasattr(module.OrtValue, "from_dlpack"):
            raise ExchangeError(
                "version",
                f"to_onnxruntime: the OrtValue of onnxruntime {module.__version__} has no "
                "from_dlpack; install onnxruntime 1.31 or later",
            )
        try:
            return _import(module, tensor)
        except not_from_handler(RuntimeError) as error:
            # a type that this version of the runtime does not know
            text = str(error).strip().partition("\n")[0]
            raise ExchangeError(
                "dtype", f"to_onnxruntime: OrtValue.from_dlpack takes no {tensor.dtype}: {text}"
            ) from error


class _Lent:
    """A tensor as `OrtValue.from_dlpack` asks for it."""

    __slots__ = ("dtype", "tensor")

    def __init__(self, tensor: native.TensorBase, dtype: DType) -> None:
        self.tensor = tensor
        self.dtype = dtype

    def __dlpack__(self) -> object:
        return self.tensor._capsule(False, 0, True)


def _import(module: Any, tensor: native.TensorBase) -> Any:
    """Return an OrtValue over `tensor`; read-only memory is lent as it is."""
    lent = tensor
    if tensor._dtype_triple == _BOOL and not _reads_bool(module):
        lent = tensor._view(tensor.shape, tensor.strides, dtype=_BYTE)
    return module.OrtValue.from_dlpack(_Lent(lent, tensor.dtype))


def _reads_bool(module: Any) -> bool:
    """Return whether a capsule says that it is of bool; before 1.32 the `dtype` of its object does.

    There the capsule must be one of uint8.
    """
    major, minor = module.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (1, 32)


def _dtype_of(x: Any) -> tuple[int, int, int]:
    """Return the DLDataType fields of the elements of an OrtValue that is a dense tensor."""
    if not x.has_value():
        raise ExchangeError("lazy", f"from_dlpack: the {protocol.describe(x)} has no value")
    if x.is_sparse_tensor():
        raise ExchangeError(
            "sparse",
            f"from_dlpack: the {protocol.describe(x)} is not dense; exchange the parts of "
            "x.as_sparse_tensor() one by one",
        )
    if not x.is_tensor():
        raise ExchangeError(
            "dtype",
            f"from_dlpack: the {protocol.describe(x)} is {x.data_type()}, not one tensor; "
            "exchange its elements one by one",
        )
    triple = ELEMENT_TYPES.get(x.element_type())
    if triple is None:
        raise ExchangeError(
            "dtype",
            f"from_dlpack: the {protocol.describe(x)} is a {x.data_type()}, whose elements have "
            "no DLPack dtype",
        )
    return triple


_BOOL, _BYTE = (6, 8, 1), (1, 8, 1)
_LIMITS = native.Limits(
    "onnxruntime", dtypes=list(ELEMENT_TYPES.values()), devices=[1], layout="row_major"
)
ADAPTER = OnnxRuntime()
