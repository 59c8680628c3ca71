"""NumPy: arrays through the C API; what DLPack cannot name is resolved or refused here."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from dlbridge._core import native
from dlbridge.device import HOST_TYPES
from dlbridge.dtype import DType
from dlbridge.errors import ExchangeError, FrameworkMissingError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.signals import not_from_handler


class NumPy(Framework):
    """numpy.ndarray, its subclasses that are plain memory, and scalars (copied)."""

    name = "numpy"
    module = "numpy"
    roots = ("numpy",)
    taken_by = "NumPy C API"
    way_in = "C API"
    way_out = "C API"
    zero_copy = "both ways"
    notes = "ml_dtypes for bfloat16, float8 and sub-byte types; read-only is kept"
    quirks = (
        Quirk(
            6,
            "all",
            "segfaults on a NULL shape with dimensions",
            "refused before",
            "Do not hand NumPy capsules of unknown origin",
        ),
        Quirk(
            14,
            "all",
            "NULL data with elements becomes fresh memory",
            "refused: null_data",
            "Do not make tensors with elements and without memory",
        ),
        Quirk(
            15,
            "all",
            "masked arrays export their data and drop the mask",
            "refused: masked",
            "Fill the mask with filled() before the export",
        ),
        Quirk(
            21,
            "2",
            "legacy imports are read-only",
            "the C API keeps them writable",
            "Copy the result where it is to be written, or go through dlbridge",
        ),
        Quirk(
            22,
            "all",
            "no bfloat16 or float8 in or out",
            "carried with ml_dtypes",
            "Use ml_dtypes with dlbridge, or view as uint16 or uint8",
            sign=Sign("refused", "either", ("bfloat16", "float8_e4m3fn", "float8_e5m2")),
        ),
    )
    expressions = Expressions(
        {"np": "numpy"},
        make="a",
        from_dlpack="np.from_dlpack({})",
        values="x",
        address="x.ctypes.data",
        copied="np.from_dlpack({}, copy=True)",
        is_view=True,
    )
    device_names: ClassVar[dict[int, str]] = {1: "cpu"}

    def recognises(self, cls: type) -> bool:
        import numpy

        return issubclass(cls, (numpy.ndarray, numpy.generic))

    def array_type(self) -> type | None:
        import numpy

        return numpy.ndarray

    def classify(self, cls: type) -> tuple[str, object] | None:
        import numpy

        plain = any(cls is kind for kind in (numpy.ndarray, numpy.memmap, numpy.matrix))
        return ("numpy", None) if plain else None

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take an array; scalars, and strides and byte orders that DLPack lacks, are copied."""
        plain = native.take_numpy(x)
        if plain is not None:
            context.route.append("NumPy C API")
            return plain
        import numpy

        if isinstance(x, numpy.generic):
            x = protocol.copied_by_numpy(x, policy, context, "scalar", lambda: numpy.array(x))
        if isinstance(x, numpy.ma.MaskedArray):
            if x.mask is not numpy.ma.nomask:
                raise ExchangeError(
                    "masked",
                    "from_dlpack: the mask of a numpy.ma.MaskedArray would be lost; pass "
                    "x.filled(value), or x.data to leave the mask out",
                )
            x = x.data
        context.route.append("NumPy C API")
        return protocol.take_array(x, policy, context)

    def limits(self) -> native.Limits:
        return _limits()

    def start(self, converter: native.Converter) -> None:
        converter.activate("numpy", self.limits(), None, self.array_type())

    def entry(self, tensor: native.TensorBase | None) -> str:
        return "NumPy C API"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        return native.give_numpy(tensor)

    # ---- names of dtypes and devices ----

    def how_to_cast(self, x: str, wanted: DType) -> str:
        is_own = wanted.triple in _NATIVE_DTYPES
        return super().how_to_cast(x, wanted) if is_own else f"{x}.astype(ml_dtypes.{wanted.name})"

    def make_dtype(self, name: str) -> Any:
        """Return a dtype of NumPy, or of ml_dtypes where NumPy has none of its own."""
        import numpy

        if DType(name).triple in _NATIVE_DTYPES:
            return numpy.dtype(name)
        try:
            import ml_dtypes
        except not_from_handler(ImportError) as error:
            raise FrameworkMissingError(f"DType.to: cannot import ml_dtypes: {error}") from error
        return numpy.dtype(getattr(ml_dtypes, name))

    def make_device(self, kind: str, number: int) -> Any:
        return kind


_NATIVE_DTYPES = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64)),
    *((2, bits, 1) for bits in (16, 32, 64)),
    (5, 64, 1),
    (5, 128, 1),
    (6, 8, 1),
]
_ML_DTYPES = [
    *("bfloat16", "complex32", "bcomplex32", "int2", "int4", "uint2", "uint4"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    *(f"float8_{kind}" for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz")),
    *(f"float8_{kind}" for kind in ("e5m2", "e5m2fnuz", "e8m0fnu")),
]


@cache
def _limits() -> native.Limits:
    import numpy

    return native.Limits(
        "numpy",
        dtypes=_dtypes(),
        devices=HOST_TYPES,
        max_ndim=64 if numpy.lib.NumpyVersion(numpy.__version__) >= "2.0.0" else 32,
        protects_readonly=True,
        padded=True,
    )


def _dtypes() -> list[tuple[int, int, int]]:
    try:
        import ml_dtypes
    except not_from_handler(ImportError):
        return _NATIVE_DTYPES
    known = [name for name in _ML_DTYPES if hasattr(ml_dtypes, name)]
    return _NATIVE_DTYPES + [DType(name).triple for name in known]


ADAPTER = NumPy()
