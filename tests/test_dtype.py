"""DType: every dtype of the standard, and every framework's objects there and back."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge.dtype
from dlbridge._core import ffi, lib
from dlbridge.dtype import NAMES, DType, as_dtype, make_dtype
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    FrameworkMissingError,
    UnsupportedTypeError,
)
from dlbridge.proto import datatypes

ALL = sorted(NAMES.values())
STANDARD = """
    bool int2 int4 int8 int16 int32 int64 uint2 uint4 uint8 uint16 uint32 uint64
    float16 float32 float64 bfloat16 bcomplex32 complex32 complex64 complex128
    float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2
    float8_e5m2fnuz float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn handle
    """.split()  # noqa: SIM905

triples = st.tuples(st.sampled_from(sorted(NAMES)), st.integers(1, 0xFFFF)).map(
    lambda drawn: (*drawn[0], drawn[1])
)


def refusal(x: object) -> str:
    with pytest.raises(ExchangeError) as caught:
        as_dtype(x)
    return caught.value.reason


def read_or_refuse(x: object) -> DType | None:
    """Return the DType, or None when DLPack cannot name it; any other error fails the test."""
    try:
        return as_dtype(x)
    except ExchangeError as error:
        return None if error.reason == "dtype" else pytest.fail(str(error))


# ---- the value ---------------------------------------------------------------------------------


def test_every_dtype_of_the_standard_has_a_name() -> None:
    assert set(STANDARD) <= set(ALL)


@given(triples)
def test_there_is_one_object_for_each_dtype(triple: tuple[int, int, int]) -> None:
    dtype = make_dtype(*triple)
    assert dtype.triple == triple
    again = (DType(triple), DType(str(dtype)), DType(dtype), copy.deepcopy(dtype))
    assert all(other is dtype for other in again)
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert eval(repr(dtype)) is dtype


def test_numbers_of_another_type_are_refused_by_name() -> None:
    for call in (dlbridge.float32.packed_bytes, DType.from_tensorflow_number):
        for wrong in ("3", 1.5, None, [1]):
            with pytest.raises(UnsupportedTypeError, match=f"^DType.{call.__name__}: "):
                call(wrong)  # type: ignore[arg-type]
        assert call(np.int64(1)) == call(1)
    with pytest.raises(ArgumentError, match=r"^DType\.packed_bytes: count must not be negative"):
        dlbridge.float32.packed_bytes(-1)


@given(triples, st.integers(0, 1 << 40))
def test_sizes_are_those_of_the_core(triple: tuple[int, int, int], count: int) -> None:
    dtype = make_dtype(*triple)
    assert dtype.itembits == lib.dlb_element_bits(triple, 0) == triple[1] * triple[2]
    assert dtype.packed_bytes(count) == lib.dlb_packed_bytes(triple, 0, count)
    assert dtype.itemsize == dtype.packed_bytes(1)
    assert dtype.is_packed == (triple[1] < 8)


def test_the_core_and_dtype_know_the_same_dtypes() -> None:
    tensor = ffi.new("DLTensor *")
    tensor.device = (1, 0)
    tensor.data = ffi.cast("void *", 64)
    for code in (*range(20), 255):
        for bits in range(256):
            tensor.dtype = (code, bits, 1)
            is_carried = lib.dlb_layout_check(tensor, 0) == ffi.NULL
            is_later = code > 18 and bits > 0
            assert is_carried == ((code, bits) in NAMES or is_later), (code, bits)


@pytest.mark.parametrize("name", STANDARD)
def test_exactly_one_kind_fits(name: str) -> None:
    dtype = DType(name)
    kinds = [dtype.is_bool, dtype.is_integer, dtype.is_floating, dtype.is_complex]
    assert sum(kinds) == (name != "handle")
    assert (
        kinds.index(True)
        == (0 if name == "bool" else 1 if "int" in name else 3 if "complex" in name else 2)
        if name != "handle"
        else True
    )


def test_the_module_names_the_standard_dtypes() -> None:
    for name in STANDARD:
        constant = getattr(dlbridge.dtype, "bool_" if name == "bool" else name)
        assert constant is DType(name)


def test_lanes_and_opaque_handles_have_names() -> None:
    assert DType("float32x4").triple == (2, 32, 4)
    assert DType("complex64x2").triple == (5, 64, 2)
    assert DType("float4_e2m1fnx2").itemsize == 1
    assert str(DType((3, 64, 1))) == "handle"
    assert DType("int4x3").itemsize == 2
    assert DType("bool1").is_packed


def test_a_dtype_is_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        DType("int8").bits = 16
    with pytest.raises(AttributeError, match="immutable"):
        del DType("int8").bits
    assert DType("int8").bits == 8


def test_equal_to_what_converts_to_it_and_to_nothing_else() -> None:
    dtype = DType("float32")
    for same in ("float32", "<f4", (2, 32), (2, 32, 1), np.float32, np.dtype("f4"), dtype):
        assert dtype == same
        assert not dtype != same  # noqa: SIM202
    strangers: tuple[Any, ...] = (
        None, [], "nonsense", 32, object(), np.dtype(">f4"), (), (2, 32, 0), {}, float,
        np.dtype("O"), str,
    )  # fmt: skip
    for other in strangers:
        assert (dtype == other) is False
        assert (dtype != other) is True


@pytest.mark.parametrize("value", [DType("float32"), dlbridge.Device("cpu")], ids=str)
def test_no_array_is_equal(value: Any, framework: Any) -> None:
    """Nor are its elements, which NumPy's own comparison would return."""
    one = np.float32(1)
    for array in (np.ones(2, "f4"), np.array(["float32", "cpu"]), np.array("float32"), one):
        assert (value == array) is False
        assert (value != array) is True
    for array in (framework("tensorflow").ones(2), framework("jax").numpy.ones(2)):
        assert (value == array) is False


def test_an_object_may_know_that_it_is_equal() -> None:
    assert DType("float32") == mock.ANY
    assert dlbridge.Device("cpu") == mock.ANY


def test_the_hash_finds_dtypes_only() -> None:
    table = {DType("int8"): 1}
    assert table[DType(np.int8)] == 1
    assert np.dtype("int8") not in table


# ---- what is read ------------------------------------------------------------------------------


def test_python_types_read_as_numpy_reads_them() -> None:
    for kind in (bool, int, float, complex):
        assert DType(kind) == np.dtype(kind)


@pytest.mark.parametrize("type_string", ["|b1", "<i2", "=u8", "<f2", "<c16", "|u1"])
def test_array_interface_type_strings_are_read(type_string: str) -> None:
    assert DType(type_string) == np.dtype(type_string)


def test_cffi_structs_are_read() -> None:
    struct = ffi.new("DLDataType *", (17, 4, 2))
    assert DType(struct[0]) is DType("float4_e2m1fnx2")
    with pytest.raises(UnsupportedTypeError):
        DType(ffi.new("DLDevice *", (1, 0)))


@pytest.mark.parametrize("kind", [">f4", ">i8", ">c8", [("a", ">f4")]])
def test_another_byte_order_is_refused(kind: Any) -> None:
    assert refusal(np.dtype(kind)) == "byte_order"


@pytest.mark.parametrize(
    "kind", ["O", "S3", "U2", "M8[s]", "m8[D]", "V4", "g", "G", [("a", "f4")], ("f4", (2,))]
)
def test_numpy_dtypes_without_a_name_in_dlpack_are_refused(kind: Any) -> None:
    assert refusal(np.dtype(kind)) == "dtype"


def test_refusals_of_fields() -> None:
    assert refusal((2, 32, 0)) == refusal((2, 32, 1 << 16)) == refusal("float32x0") == "lanes"
    assert (
        refusal((2, 31, 1))
        == refusal((256, 8))
        == refusal((99, 0))
        == refusal((99, 256))
        == "dtype"
    )
    assert refusal("code19_bits256") == "dtype"


def test_a_code_that_is_newer_than_the_standard_is_written_by_its_number() -> None:
    dtype = DType((19, 16, 4))
    assert (str(dtype), dtype.itemsize) == ("code19_bits16x4", 8)
    assert DType("code19_bits16x4") is dtype
    assert DType("code19_bits16").triple == (19, 16, 1)
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert not any((dtype.is_integer, dtype.is_floating, dtype.is_complex, dtype.is_bool))


@pytest.mark.parametrize(
    "name",
    [
        "code2_bits32",
        "code019_bits8",
        "code19_bits08",
        "code19_bits8x",
        "code19",
        "",
        "x",
        "flaot",
        "float33",
        "f3",
        "float32x",
        "int8x-1",
        "Float32",
        "int8x" + "9" * 5000,
    ],
    ids=lambda name: name[:20],
)
def test_unknown_names_are_told_the_known_ones(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"unknown name '{name}'; known are int1, .*, bool,"):
        DType(name)


OTHER_NAMES = [("f32", "float32"), ("bf16", "bfloat16"), ("f8e4m3fn", "float8_e4m3fn")]
OTHER_NAMES += [
    ("half", "float16"),
    ("float", "float32"),
    ("double", "float64"),
    ("fp16", "float16"),
]
OTHER_NAMES += [("short", "int16"), ("int", "int32"), ("long", "int64"), ("cfloat", "complex64")]
OTHER_NAMES += [("f4", "float32"), ("f8", "float64"), ("c16", "complex128"), ("<i4", "int32")]
OTHER_NAMES += [("u16", "uint16"), ("f32x4", "float32x4"), ("torch.bfloat16", "bfloat16")]


@pytest.mark.parametrize(("name", "own"), OTHER_NAMES)
def test_other_names_of_the_field_are_understood(name: str, own: str) -> None:
    assert DType(name) is DType(own)
    if "x" not in own:
        assert dlbridge.zeros(2, name).dtype == own
        assert dlbridge.to_numpy(np.ones(2, "bool"), dtype=name).dtype == DType(own).numpy


@pytest.mark.parametrize("name", ["half", "double", "short", "long", "bfloat", "f32", "float32"])
def test_schemas_and_graphs_know_the_same_names(name: str) -> None:
    schema = dlbridge.Schema.parse(f"dlbridge_tests::same(x: {name}[n]) -> {name}[n]")
    assert schema == dlbridge.Schema.parse(
        f"dlbridge_tests::same(x: {DType(name)}[n]) -> {DType(name)}[n]"
    )
    assert datatypes.as_dtype(name).dlpack is DType(name)


@pytest.mark.parametrize("name", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_a_size_that_may_be_bits_or_bytes_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"'{name}' is \w+ in bits, and NumPy's \w+ in bytes"):
        DType(name)


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"'flaot32'; .*did you mean 'float32'\?"):
        dlbridge.empty(2, "flaot32")


@pytest.mark.parametrize("x", [None, 3, [2, 32, 1], (), (1,), (1, 2, 3, 4), (2.0, 32), list])
def test_an_invalid_dtype_is_a_type_error(x: object) -> None:
    with pytest.raises(UnsupportedTypeError, match="as a dtype; pass a name such as 'float32'"):
        DType(x)


# ---- every framework ---------------------------------------------------------------------------


def check_both_ways(foreign: Any, name: str, framework: str) -> None:
    """`foreign` reads as `name`, writes back as itself, and equals the DType from either side."""
    dtype = DType(foreign)
    assert str(dtype) == name
    assert dtype.to(framework) == foreign
    assert dtype == foreign
    assert DType("int8x7") != foreign


def writable(framework: str) -> set[str]:
    """The names that `framework` has a dtype for; each is read back as what it was."""
    found = set()
    for name in [*ALL, "float4_e2m1fnx2", "float32x4"]:
        with contextlib.suppress(ExchangeError):
            check_both_ways(DType(name).to(framework), name, framework)
            found.add(name)
    return found


def test_numpy_both_ways() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    older = {name for name in ("bcomplex32", "complex32") if not hasattr(ml_dtypes, name)}
    assert writable("numpy") >= set(STANDARD) - {"handle"} - older
    for name in set(STANDARD) - {"handle"} - older:
        own = DType(name).numpy
        assert own == DType(name)
        assert np.dtype(DType(name)) == own
        assert DType(own.type) is DType(name)
        assert np.zeros(2, DType(name)).dtype == own
    for type_number in "bhilqBHILQefdFD?":
        assert DType(np.dtype(type_number)) == np.dtype(type_number)


def test_types_that_numpy_lacks_leave_its_comparisons_alone() -> None:
    assert np.dtype("f8") != DType("handle")
    with pytest.raises(TypeError):
        np.dtype(DType("handle"))


def test_torch_both_ways(framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    every = {x for x in vars(torch).values() if isinstance(x, torch.dtype)}
    read = {str(read_or_refuse(x)): x for x in every}
    assert all(x == DType(x) for name, x in read.items() if name != "None")
    refused = {str(x).removeprefix("torch.") for x in every if read_or_refuse(x) is None}
    assert all(re.fullmatch(r"(q|bits).*|u?quint.*|u?int[3567]", name) for name in refused)
    assert writable("torch") == set(read) - {"None"}
    assert set(read) >= {"bool", "bfloat16", "complex32", "float8_e8m0fnu", "uint64"}
    with pytest.raises(UnsupportedTypeError):
        DType(torch.ones(3))


def test_jax_both_ways(framework: Callable[[str], Any]) -> None:
    jnp = framework("jax.numpy")
    for name in writable("jax"):
        scalar_type = getattr(jnp, "bool_" if name == "bool" else name)
        assert DType(scalar_type) == scalar_type == DType(name)
        assert DType(jnp.dtype(scalar_type)) is DType(name)
    assert len(writable("jax")) >= 25
    key = framework("jax").random.key(0)
    with pytest.raises(DLBridgeError):
        DType(key.dtype)


def test_tensorflow_both_ways(framework: Callable[[str], Any]) -> None:
    tf = framework("tensorflow")
    read = set()
    for number in range(1, 134):
        try:
            foreign = tf.as_dtype(number)
        except TypeError:
            continue
        dtype = read_or_refuse(foreign)
        if dtype is None:
            is_value = not (foreign._is_ref_dtype or foreign.is_quantized)
            assert not is_value or foreign in (tf.string, tf.resource, tf.variant)
            continue
        read.add(str(dtype))
        assert foreign.name == dtype.name
        assert dtype.tensorflow_number == number
        assert DType.from_tensorflow_number(number) is dtype
        assert foreign == dtype == foreign.name
    assert writable("tensorflow") == read
    assert len(read) >= 23


def test_tensorflow_numbers_that_dlpack_cannot_name() -> None:
    for number in (0, 7, 11, 20, 101, 999):
        with pytest.raises(ExchangeError, match=f"number {number}"):
            DType.from_tensorflow_number(number)
    with pytest.raises(ExchangeError, match="no DataType number for handle"):
        _ = DType("handle").tensorflow_number
    with pytest.raises(ExchangeError, match="float32x2"):
        _ = DType("float32x2").tensorflow_number


def test_tvm_both_ways(framework: Callable[[str], Any]) -> None:
    tvm_ffi = framework("tvm_ffi")
    missing = {"bcomplex32", "complex32", "complex64", "complex128"}
    assert writable("tvm") >= {*STANDARD, "float32x4", "float4_e2m1fnx2"} - missing
    assert tvm_ffi.dtype("int8x16") == DType("int8x16")


def test_mlx_both_ways(framework: Callable[[str], Any]) -> None:
    mx = framework("mlx.core")
    every = {str(DType(x)) for x in vars(mx).values() if isinstance(x, mx.Dtype)}
    assert writable("mlx") == every
    assert len(every) >= 13


def test_paddle_both_ways(framework: Callable[[str], Any]) -> None:
    paddle = framework("paddle")
    assert writable("paddle") >= {"bool", "float32", "bfloat16", "complex64", "int64", "uint16"}
    assert read_or_refuse(paddle.pstring) is None
    with pytest.raises(UnsupportedTypeError):
        DType(paddle.to_tensor(1.0))


@pytest.mark.parametrize("name", ["cupy", "dpnp"])
def test_libraries_with_numpy_dtypes(framework: Callable[[str], Any], name: str) -> None:
    framework(name)
    assert writable(name) >= {"bool", "float32", "int64", "complex64"}


def test_unknown_frameworks_are_told_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="unknown framework 'caffe'; known are numpy, torch"):
        DType("int8").to("caffe")


def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlbridge.dtype, "_exported", {})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(FrameworkMissingError, match="cannot import ml_dtypes"):
        DType("uint1").to("numpy")


def test_reading_imports_no_framework(run_python: Callable[..., Any]) -> None:
    code = """
        import sys, numpy
        from dlbridge.dtype import DType
        DType("bfloat16"), DType(numpy.float32), DType((17, 4)), DType(int) == object()
        print(sorted({"torch", "jax", "tensorflow", "ml_dtypes", "tvm_ffi"} & set(sys.modules)))
    """
    assert run_python(code).check().strip() == "[]"


def test_the_dlpack_data_type_protocol_is_spoken_both_ways():
    class Foreign:
        def __init__(self, *fields):
            self.fields = fields

        def __dlpack_data_type__(self):
            return self.fields

    assert DType("float32x4").__dlpack_data_type__() == (2, 32, 4)
    assert DType(Foreign(2, 32, 4)) is DType("float32x4")
    assert DType("int8") == Foreign(0, 8, 1)
    with pytest.raises(UnsupportedTypeError):
        DType(Foreign("a", 8, 1))
    with pytest.raises(UnsupportedTypeError):
        DType(Foreign)


def test_tvm_ffi_reads_a_dtype_as_a_dtype():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    for call in (tvm_ffi.convert, tvm_ffi.get_global_func("testing.echo")):
        got = call(DType("float16"))
        assert isinstance(got, tvm_ffi.dtype)
        assert got == "float16"
