"""Policies and copies that the C path serves by itself, with the results of the Python path."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge._core import native
from dlbridge.exchange import context, exchange

TARGETS = ["jax", "tensorflow", "torch", "numpy", "dlbridge"]
DTYPES = ["bool", "int8", "uint16", "float16", "float32", "int32", "int64", "float64", "complex64"]


def arrange(nbytes: int, offset: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return memory that begins `offset` bytes after a multiple of 64."""
    raw = np.arange(nbytes + 128, dtype=np.uint64).astype(np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + nbytes]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of any layout and alignment."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    offset = draw(st.sampled_from([0, 0, 8, 16, 32, 48, 1]))
    memory = arrange(int(np.prod(shape)) * dtype.itemsize, offset)
    array = (memory % 2).view("bool") if dtype.kind == "b" else memory.view(dtype)
    array = array.reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = [draw(st.sampled_from([1, 1, -1, 2, -2])) for _ in range(array.ndim)]
    array = array[(..., *(slice(None, None, step) for step in steps))]
    if draw(st.booleans()):
        array.flags.writeable = False
    return array


POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "copy": st.sampled_from([None, False, True, 1]),
        "readonly": st.sampled_from(["respect", "share", "copy", None]),
        "immutable": st.sampled_from(["share", "respect", "copy", None]),
        "grad": st.sampled_from(["refuse", "detach", "keep"]),
        "layout": st.sampled_from([None, "any", "contiguous", "C"]),
        "narrow": st.sampled_from([None, "checked"]),
        "device": st.sampled_from([None, "cpu", dlbridge.Device("cpu"), "nowhere"]),
        "stream": st.sampled_from([None, "current", "none"]),
    },
)


def outcome(convert: Any, x: Any, *target: str, **policies: Any) -> Any:
    """All that a caller can see of the result."""
    try:
        result = convert(x, *target, **policies)
    except dlbridge.DLBridgeError as error:
        return type(error), str(error)
    if result is x:
        return "identity"
    tensor = dlbridge.from_dlpack(result)
    inside = dlbridge.from_dlpack(x)
    shared = tensor.data_ptr == inside.data_ptr if tensor.size else None
    facts = (type(result), tensor.shape, tensor.dtype, tensor.readonly, shared, tensor.device)
    alignment = None if shared or not tensor.size else tensor.data_ptr % 64
    strides = tensor.strides if tensor.size else None
    return facts, strides, alignment, np.asarray(tensor).tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_a_conversion_is_that_of_the_python_path(framework: Any, target: str) -> None:
    if target != "dlbridge":
        framework(target)

    @given(arrays())
    def check(x: np.ndarray[Any, Any]) -> None:
        assert outcome(dlbridge.convert, x, target) == outcome(exchange.convert, x, target)
        tensor = dlbridge.from_dlpack(x)
        assert outcome(dlbridge.convert, tensor, target) == outcome(
            exchange.convert, tensor, target
        )

    check()


@pytest.mark.fast(lambda target: target in ("numpy", "torch"))
@pytest.mark.parametrize("target", TARGETS)
def test_policies_mean_what_they_mean_in_python(framework: Any, target: str) -> None:
    for name in {"torch", "jax", target} - {"dlbridge"}:
        framework(name)

    @given(arrays(), st.sampled_from(["numpy", "torch", "jax", "dlbridge"]), POLICIES)
    def check(array: np.ndarray[Any, Any], source: str, policies: dict[str, Any]) -> None:
        try:
            x = dlbridge.convert(array, source)
        except dlbridge.DLBridgeError:
            x = array
        assert outcome(dlbridge.convert, x, target, **policies) == outcome(
            exchange.convert, x, target, **policies
        )
        to = getattr(dlbridge, f"to_{target}", None)
        if to is not None:
            assert outcome(to, x, **policies) == outcome(exchange.convert, x, target, **policies)
        taken = {key: policies[key] for key in ("copy", "device", "stream") if key in policies}
        assert outcome(dlbridge.from_dlpack, x, **taken) == outcome(
            exchange.from_dlpack, x, **taken
        )

    check()


@pytest.mark.parametrize(
    "policy",
    [
        {"copy": False},
        {"copy": True},
        {"grad": "detach"},
        {"readonly": "copy"},
        {"immutable": "respect"},
        {"immutable": "copy"},
        {"layout": "contiguous"},
        {"device": "cpu"},
        {"narrow": "checked"},
    ],
    ids=str,
)
def test_a_policy_needs_no_python(framework: Any, policy: dict[str, Any]) -> None:
    framework("torch")
    array = arrange(64, 0).view("float32")
    dlbridge.to_torch(array, **policy)
    assert python_calls(lambda: dlbridge.to_torch(array, **policy)) == []
    assert python_calls(lambda: dlbridge.convert(array, "torch", **policy)) == []


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64", "uint64"])
def test_narrowing_needs_no_python(framework: Any, dtype: str) -> None:
    """Unless a value would be lost, which Python says."""
    framework("jax")
    x = np.arange(60.0).reshape(3, 4, 5).astype(dtype).transpose(2, 0, 1)[::-1, :, ::2]
    dlbridge.to_jax(x, narrow="checked")
    assert python_calls(lambda: dlbridge.to_jax(x, narrow="checked")) == []
    assert np.array_equal(np.asarray(dlbridge.to_jax(x, narrow="checked")), x)
    lost = np.full((2, 3), 2**62 if "int" in dtype else 1e300, dtype)
    with pytest.raises(dlbridge.ExchangeError) as caught:
        dlbridge.to_jax(lost, narrow="checked")
    assert caught.value.reason == "dtype"


@pytest.mark.parametrize("source", ["jax", "tensorflow"])
@pytest.mark.parametrize("policy", ["share", "respect", "copy"])
def test_a_policy_on_immutable_values_needs_no_python(
    framework: Any, source: str, policy: str
) -> None:
    framework(source)
    x = dlbridge.convert(arrange(64, 0).view("float32"), source)
    dlbridge.to_numpy(x, immutable=policy)
    assert python_calls(lambda: dlbridge.to_numpy(x, immutable=policy)) == []


WIDE = ["int64", "uint64", "float64", "complex128"]


@pytest.mark.parametrize("source", ["numpy", "torch", "tensorflow", "dlbridge"])
@pytest.mark.parametrize("dtype", WIDE)
def test_wide_dtypes_go_to_jax_without_python_while_x64_is_on(
    framework: Any, source: str, dtype: str
) -> None:
    jax = framework("jax")
    if source != "dlbridge":
        framework(source)
    x = dlbridge.convert(arrange(64, 0).view(dtype), source)
    for policy in ({}, {"copy": True}, {"copy": False}):
        with jax.enable_x64(True):
            dlbridge.to_jax(x, **policy)
            assert python_calls(lambda: dlbridge.to_jax(x, **policy)) == []  # noqa: B023
            made = dlbridge.to_jax(x, **policy)
        assert made.dtype == dtype
        assert np.asarray(made).tobytes() == np.asarray(x).tobytes()


def test_a_misaligned_float64_goes_to_jax_without_python_while_x64_is_on(framework: Any) -> None:
    jax = framework("jax")
    x = arrange(64, 16).view("float64")
    with jax.enable_x64(True):
        dlbridge.to_jax(x)
        assert python_calls(lambda: dlbridge.to_jax(x)) == []
        with pytest.raises(dlbridge.ExchangeError, match=r"\[alignment\]$"):
            dlbridge.to_jax(x, copy=False)


@pytest.mark.parametrize("is_on", [False, True])
def test_a_conversion_to_jax_is_that_of_the_python_path_with_x64(
    framework: Any, is_on: bool
) -> None:
    jax = framework("jax")

    @given(arrays(), POLICIES)
    def check(x: np.ndarray[Any, Any], policies: dict[str, Any]) -> None:
        with jax.enable_x64(is_on):
            for each in (x, dlbridge.from_dlpack(x)):
                assert outcome(dlbridge.to_jax, each, **policies) == outcome(
                    exchange.convert, each, "jax", **policies
                )

    check()


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "int4", "float4_e2m1fn"]
)
def test_arrays_of_ml_dtypes_are_taken_without_python(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    plain = (arrange(24, 2) % 2).astype(getattr(ml_dtypes, name)).reshape(2, 3, 4)
    readonly = plain.copy()
    readonly.flags.writeable = False
    empty, scalar = plain[:0], plain[1, 2, 3, ...]
    for x in (plain, plain.T, plain[::-1, :, ::2], empty, scalar, readonly):
        dlbridge.from_dlpack(x)
        assert python_calls(lambda: dlbridge.from_dlpack(x)) == []  # noqa: B023
        tensor = dlbridge.from_dlpack(x)
        assert (tensor.dtype, tensor.shape) == (name, x.shape)
        assert tensor.data_ptr == x.ctypes.data
        assert tensor.readonly is not x.flags.writeable
        steps = tuple(step // x.itemsize for step in x.strides)
        assert not x.size or tensor.strides == steps
        back = dlbridge.to_numpy(tensor)
        assert back.dtype == x.dtype
        assert back.tobytes() == x.tobytes()


def test_a_structured_or_swapped_array_is_still_for_python() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    fields = np.zeros(3, [("x", ml_dtypes.bfloat16), ("y", ml_dtypes.bfloat16)])
    with pytest.raises(dlbridge.DLBridgeError, match="one by one"):
        dlbridge.from_dlpack(fields)
    of_field = dlbridge.from_dlpack(fields["y"])
    assert (of_field.strides, of_field.data_ptr) == ((2,), fields.ctypes.data + 2)
    packed = np.zeros(3, [("x", "u1"), ("y", ml_dtypes.bfloat16)])
    with pytest.raises(dlbridge.ExchangeError, match=r"\[strides\]$"):
        dlbridge.as_tensor(packed["y"], copy=False)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("target", ["torch", "jax"])
def test_arrays_of_ml_dtypes_go_to_frameworks_without_python(
    framework: Any, target: str, name: str
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    framework(target)
    for offset in (0, 16):
        x = (arrange(64, offset) % 60).view(getattr(ml_dtypes, name))
        dlbridge.convert(x, target)
        assert python_calls(lambda: dlbridge.convert(x, target)) == []  # noqa: B023
        made = dlbridge.convert(x, target)
        assert dlbridge.to_numpy(made).tobytes() == x.tobytes()
        assert dlbridge.from_dlpack(made).dtype == name


NARROW = ["int4", "uint4", "int2", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu"]


def of_ml_dtypes(name: str, *shape: int) -> np.ndarray[Any, Any]:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    count = int(np.prod(shape))
    values: np.ndarray[Any, Any] = (np.arange(count) % 2).astype(getattr(ml_dtypes, name))
    return values.reshape(shape)


@pytest.mark.fast(lambda name: name in ("int4", "float4_e2m1fn"))
@pytest.mark.parametrize("source", ["jax", "tensorflow"])
@pytest.mark.parametrize("name", NARROW)
def test_narrow_dtypes_mean_by_the_c_path_what_they_mean_in_python(
    framework: Any, source: str, name: str
) -> None:
    """Those that a framework exports, and those that it reads or makes by their values alone."""
    framework(source)
    for target in {"jax", "tensorflow"} - {source}:
        framework(target)
    values = of_ml_dtypes(name, 2, 3)
    try:
        x = dlbridge.convert(values, source)
    except dlbridge.ExchangeError:
        pytest.skip(f"{source} has no {name}")

    @given(POLICIES, st.sampled_from(["jax", "tensorflow", "numpy", "dlbridge"]))
    def check(policies: dict[str, Any], target: str) -> None:
        for each in (x, values, values[:, ::2], values[:0], values[1, 2, ...]):
            assert seen(dlbridge.convert, each, target, **policies) == seen(
                exchange.convert, each, target, **policies
            )
        taken = {key: policies[key] for key in ("copy", "device", "stream") if key in policies}
        assert seen(dlbridge.from_dlpack, x, **taken) == seen(exchange.from_dlpack, x, **taken)

    def seen(*call: Any, **policies: Any) -> Any:
        """Return the outcome; frameworks allocate their own copies where they like."""
        found = outcome(*call, **policies)
        return (*found[:2], *found[3:]) if len(found) == 4 else found

    check()


@pytest.mark.parametrize(
    ("target", "name"),
    [("tensorflow", "float8_e5m2"), ("tensorflow", "int4"), ("jax", "int4"), ("jax", "uint4")],
)
def test_a_framework_makes_a_copy_of_what_it_does_not_import(
    framework: Any, target: str, name: str
) -> None:
    framework(target)
    x = of_ml_dtypes(name, 64)
    made = dlbridge.convert(x, target)
    expected = x.tobytes()
    x[:] = 0
    assert np.asarray(dlbridge.to_numpy(made)).tobytes() == expected
    with pytest.raises(dlbridge.ExchangeError, match=r"copy=False"):
        dlbridge.convert(x, target, copy=False)


@pytest.mark.parametrize(
    ("source", "name"), [("tensorflow", "float8_e5m2"), ("tensorflow", "int4"), ("jax", "int4")]
)
def test_values_that_a_framework_does_not_export_are_read_in_one_call(
    framework: Any, source: str, name: str
) -> None:
    framework(source)
    values = of_ml_dtypes(name, 3, 4)
    x = dlbridge.convert(values, source)
    for call in (dlbridge.from_dlpack, dlbridge.to_numpy):
        call(x)
        assert {Path(each).parent.name for each in python_calls(lambda: call(x))} == {source}  # noqa: B023
        assert np.asarray(dlbridge.to_numpy(call(x))).tobytes() == values.tobytes()
    with dlbridge.receipts() as log:
        dlbridge.to_numpy(x)
    assert (log[0].shared, log[0].copied_by) == (False, source)
    with pytest.raises(dlbridge.ExchangeError, match=r"\[dtype\]$"):
        dlbridge.from_dlpack(x, copy=False)


def python_calls(call: Any) -> list[str]:
    """Return the files of dlbridge whose functions are called, and those of imports."""
    calls: list[str] = []
    call()  # the first one learns the types
    sys.setprofile(
        lambda frame, event, _: calls.append(frame.f_code.co_filename) if event == "call" else None
    )
    try:
        call()
    finally:
        sys.setprofile(None)
    package = str(Path(dlbridge.__file__).parent)
    return [each for each in calls if each.startswith(package) or "importlib" in each]


@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("nbytes", [4, 1024, 1 << 20])
def test_a_copy_needs_no_python(framework: Any, target: str, nbytes: int) -> None:
    framework(target)
    array = arrange(nbytes, 16).view("float32")
    array = array[::-1] if target == "torch" and array.size > 1 else array
    dlbridge.convert(array, target)
    assert python_calls(lambda: dlbridge.convert(array, target)) == []
    result = dlbridge.convert(array, target)
    assert np.asarray(result).tobytes() == array.tobytes()


@pytest.mark.parametrize("target", ["jax", "tensorflow"])
def test_a_copy_belongs_to_the_result_alone(framework: Any, target: str) -> None:
    framework(target)
    array = arrange(4096, 16).view("float32")
    result = dlbridge.convert(array, target)
    expected = array.tobytes()
    before = native.live()
    array[:] = -1
    assert np.asarray(result).tobytes() == expected
    del result
    assert native.live()["exports"] == before["exports"] - 1


def test_policies_match_their_literal_types() -> None:
    """C has the table; type checkers read the same words in `context.py` and in the stub."""
    types = get_type_hints(context.Policies)
    stub = Path(native.__spec__.origin).with_name("_native.pyi").read_text()
    for name, words in native.POLICY_WORDS.items():
        assert words_of(types[name]) == set(words), name
        literals = re.findall(rf"^ +{name}: (Literal.*) = ", stub, re.MULTILINE)
        assert literals, name
        for literal in literals:
            assert set(re.findall(r'None|"[^"]*"', literal)) == {
                "None" if word is None else f'"{word}"' for word in words
            }, name


class Word(str):
    """A text of a class of its own, as the members of a StrEnum are."""


@pytest.mark.parametrize("target", ["numpy", "torch"])
def test_policies_may_be_subclasses_of_str(framework: Any, target: str) -> None:
    framework(target)
    array = arrange(64, 0).view("float32").reshape(4, 4).T
    array.flags.writeable = False
    for name, words in native.POLICY_WORDS.items():
        for word in filter(None, words):
            policies: dict[str, Any] = {"copy": True, name: Word(word)}
            result = dlbridge.convert(array, target, **policies)
            why = dlbridge.explain(array, target, **policies).why
            with dlbridge.receipts() as log:
                dlbridge.convert(array, target, **policies)
            assert log[0].why == why
            assert np.array_equal(np.asarray(result), array)
    with pytest.raises(dlbridge.errors.ArgumentError, match="readonly"):
        dlbridge.convert(array, target, readonly=Word("shared"))


def words_of(annotation: Any) -> set[str | None]:
    """Return the words of a Literal, and None where it is optional."""
    found: set[str | None] = set()
    for part in get_args(annotation):
        found |= words_of(part) if get_args(part) else {part if isinstance(part, str) else None}
    return found


@pytest.mark.parametrize("target", ["numpy", "torch", "tensorflow"])
def test_receipts_and_refusals_agree_with_explain(framework: Any, target: str) -> None:
    for name in {"torch", "jax", target}:
        framework(name)

    @given(arrays(), st.sampled_from(["numpy", "torch", "jax", "dlbridge"]), POLICIES)
    def check(array: np.ndarray[Any, Any], source: str, policies: dict[str, Any]) -> None:
        try:
            x = dlbridge.convert(array, source)
        except dlbridge.DLBridgeError:
            return
        try:
            foretold = dlbridge.explain(x, target, **policies)
        except dlbridge.DLBridgeError as refusal:
            with pytest.raises(type(refusal)):
                dlbridge.convert(x, target, **policies)
            return
        with dlbridge.receipts() as log:
            dlbridge.convert(x, target, **policies)
        assert (log[0].copied_by, log[0].why) == (foretold.copied_by, foretold.why)

    check()


@pytest.mark.parametrize("target", ["jax", "tensorflow"])
def test_an_open_log_of_receipts_sees_the_copy(framework: Any, target: str) -> None:
    framework(target)
    array = arrange(64, 16).view("float32")
    with dlbridge.receipts() as log:
        dlbridge.convert(array, target)
    assert (log[0].shared, log[0].copied_by, log[0].why) == (False, "dlbridge", "alignment")
    assert "aligned_numpy" in repr(log[0])
