"""The texts of refusals: each names the call that the user made, and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from dlpack_peers import Description, ModernProducer

import dlbridge
import dlbridge.graph as tf
from dlbridge.errors import REASONS, DLBridgeError

X = np.arange(6, dtype="f4").reshape(2, 3)


class Arraylike:
    """Known to NumPy alone."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X


class Refusing:
    def __dlpack__(self, **_: object) -> object:
        raise BufferError("not today")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Module:
    """With tensors inside, as a torch.nn.Module."""

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"weight": X}


RECORDS = np.zeros(2, [("a", "i4"), ("b", "f4")])

# What is passed; the reason; what came; what to do.
NOT_TENSORS: dict[str, tuple[Any, str, str, str]] = {
    "dict": ({"a": X}, "type", "dict", "convert_tree"),
    "list of arrays": ([X, X], "type", "list", "convert_tree"),
    "tuple": ((1, 2), "type", "tuple", "as_tensor takes nested numbers"),
    "set": ({1}, "type", "set", "put what is in it into a list"),
    "float": (3.0, "type", "float", "as_tensor takes numbers"),
    "array-like": (Arraylike(), "type", "Arraylike", "pass numpy.asarray(x)"),
    "class": (np.ndarray, "type", "the class ndarray", "pass an object of it"),
    "module": (Module(), "type", "Module", "convert_tree converts the tensors of x.state_dict()"),
    "None": (None, "type", "NoneType", "no __dlpack__"),
    "text": (np.array(["a"]), "dtype", "<U1", "encode the text as numbers"),
    "bytes": (np.array([b"a"]), "dtype", "S1", "encode the text as numbers"),
    "objects": (np.array([None]), "dtype", "'O'", "x.astype"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), "dtype", "M8[D]", 'x.view("int64")'),
    "durations": (np.array([1], "m8[s]"), "dtype", "m8[s]", 'x.view("int64")'),
    "long double": (np.array([1], "g"), "dtype", "float128", 'x.astype("float64")'),
    "long complex": (np.array([1], "G"), "dtype", "complex256", 'x.astype("complex128")'),
    "void": (np.zeros(2, "V4"), "dtype", "V4", 'x.view("uint8")'),
    "records": (RECORDS, "dtype", "'a'", "x['a']"),
    "masked": (np.ma.masked_array([1, 2], [0, 1]), "masked", "MaskedArray", "x.filled(value)"),
    "refusing": (Refusing(), "producer", "BufferError: not today", "refuses to export"),
}

CALLS: dict[str, Callable[[Any], object]] = {
    "to_dlpack": dlbridge.to_dlpack,
    "from_dlpack": dlbridge.from_dlpack,
    "from_dlpack ": lambda x: dlbridge.from_dlpack(x, device="cpu"),
    "as_tensor": dlbridge.as_tensor,
    "as_tensor ": lambda x: dlbridge.as_tensor(x, copy=True),
    "to_numpy": lambda x: dlbridge.to_numpy(x, copy=True),
    "to_torch": lambda x: dlbridge.to_torch(x),
    "to_torch ": lambda x: dlbridge.convert(x, "torch"),
    "explain(to torch)": lambda x: dlbridge.explain(x, "torch"),
}


# The numbers among them are what these calls take.
CASES = [
    (case, call)
    for case, (given, *_) in NOT_TENSORS.items()
    for call in CALLS
    if not (isinstance(given, (float, list, tuple)) and call.strip() in ("as_tensor", "to_dlpack"))
]


@pytest.mark.parametrize(("case", "call"), CASES)
def test_a_refusal_names_the_call_what_came_and_what_to_do(
    framework: Any, case: str, call: str
) -> None:
    if "torch" in call:
        framework("torch")
    given, reason, came, advice = NOT_TENSORS[case]
    with pytest.raises(DLBridgeError) as caught:
        CALLS[call](given)
    text = str(caught.value)
    assert text.startswith(f"{call.strip()}: "), text
    assert text.count(": from_dlpack:") == 0
    assert caught.value.reason == reason
    assert came in text
    assert advice in text


TORCH: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "meta": (lambda torch: torch.ones(2, device="meta"), "lazy", "device='cpu'"),
    "sparse": (lambda torch: torch.eye(2).to_sparse(), "sparse", "x.to_dense()"),
    "gradient": (lambda torch: torch.ones(2, requires_grad=True), "requires_grad", "x.detach()"),
    "quantised": (
        lambda torch: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "quantized",
        "x.dequantize()",
    ),
}


@pytest.mark.parametrize("case", TORCH)
def test_a_refusal_of_a_torch_tensor_says_what_to_do(framework: Any, case: str) -> None:
    make, reason, advice = TORCH[case]
    x = make(framework("torch"))
    for call, name in ((dlbridge.to_numpy, "to_numpy"), (dlbridge.from_dlpack, "from_dlpack")):
        with pytest.raises(dlbridge.ExchangeError) as caught:
            call(x)
        assert str(caught.value).startswith(f"{name}: the torch.Tensor ")
        assert (caught.value.reason, advice in str(caught.value)) == (reason, True)


# What a tree may hold as plain data is no leaf to convert.
LEAVES = [
    (case, to)
    for case in ("long double", "masked", "refusing", *TORCH)
    for to in ("jax", "numpy", "dlbridge")
    if (case, to) != ("long double", "numpy")  # NumPy keeps its own
]


@pytest.mark.parametrize(("case", "to"), LEAVES)
def test_a_refusal_of_a_leaf_names_convert_tree_and_its_path(
    framework: Any, case: str, to: str
) -> None:
    torch = framework("torch")
    framework("jax")
    x, reason, advice = (
        (TORCH[case][0](torch), *TORCH[case][1:])
        if case in TORCH
        else (NOT_TENSORS[case][0], NOT_TENSORS[case][1], NOT_TENSORS[case][3])
    )
    for tree, path in ((x, ""), ({"a": [1, x]}, "at ['a'][1]: "), ((X, {"b": x}), "at [1]['b']: ")):
        with pytest.raises(dlbridge.ExchangeError) as caught:
            dlbridge.convert_tree(tree, to)
        text = str(caught.value)
        assert text.startswith(f"convert_tree: {path}"), text
        assert not any(f"{call}:" in text for call in ("to_jax", "to_numpy", "from_dlpack"))
        assert (caught.value.reason, advice in text) == (reason, True)
        assert text.count(f"[{reason}]") == 1


def test_a_refusal_inside_of_a_transform_says_what_to_do(framework: Any) -> None:
    torch, jax = framework("torch"), framework("jax")
    transforms = (
        (lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(2))),
        (lambda f: torch.vmap(f)(torch.ones(2))),
        (lambda f: jax.jit(f)(jax.numpy.ones(2))),
        (lambda f: jax.vmap(f)(jax.numpy.ones(2))),
        (lambda f: jax.grad(lambda x: f(x).sum())(jax.numpy.ones(2))),
    )
    for transform in transforms:
        with pytest.raises(dlbridge.ExchangeError, match=r"^to_numpy: .*dlbridge\.wrap") as caught:
            transform(lambda x: dlbridge.to_numpy(x))
        assert caught.value.reason == "lazy"


def test_a_refusal_of_a_key_of_jax_names_its_data(framework: Any) -> None:
    jax = framework("jax")
    with pytest.raises(dlbridge.ExchangeError, match=r"^to_numpy: .*jax\.random\.key_data\(x\)"):
        dlbridge.to_numpy(jax.random.key(0))


# ---- every reason, by every call that can make it ------------------------------------------------


class Row(NamedTuple):
    """What is refused.

    Attributes:
        make: makes it; called with the fixture `framework`.
        came: words of the text that say what came.
        advice: words that say what to do.
        calls: keys of WAYS.
    """

    make: Callable[[Any], Any]
    came: str
    advice: str
    calls: tuple[str, ...]


TWICE = dlbridge.wrap(lambda x: x * 2, "messages::twice(x: f32[n]) -> f32[n]", abi="python:numpy")
ARGUMENT, OUT = "messages::twice: argument 'x'", "messages::twice: argument 'out"
FED = "Session.run: value for 'p:0'"


def feed(value: Any) -> Any:
    with tf.Graph().as_default() as graph:
        doubled = tf.placeholder(tf.float32, [None], name="p") * 2.0
    with tf.Session(graph=graph) as session:
        return session.run(doubled, {"p:0": value})


# How a text begins: the call, which is told to share.
WAYS: dict[str, Callable[[Any], object]] = {
    "from_dlpack": lambda x: dlbridge.from_dlpack(x, copy=False),
    "as_tensor": lambda x: dlbridge.as_tensor(x, copy=False),
    "asarray": lambda x: dlbridge.asarray(x, copy=False),
    "to_dlpack": lambda x: dlbridge.to_dlpack(x, copy=False),
    "equal": lambda x: dlbridge.equal(x, X),
    "to_numpy": lambda x: dlbridge.to_numpy(x, copy=False),
    "to_torch": lambda x: dlbridge.to_torch(x, copy=False),
    "to_jax": lambda x: dlbridge.to_jax(x, copy=False),
    "to_tensorflow": lambda x: dlbridge.to_tensorflow(x, copy=False),
    "explain(to numpy)": lambda x: dlbridge.explain(x, "numpy", copy=False),
    "explain(to torch)": lambda x: dlbridge.explain(x, "torch", copy=False),
    "convert_tree: at ['a']": lambda x: dlbridge.convert_tree({"a": x}, "dlbridge", copy=False),
    "convert_tree: at [0]": lambda x: dlbridge.convert_tree([x], "torch", copy=False),
    "Tensor.__setitem__": lambda x: dlbridge.from_dlpack(x).__setitem__(0, 1),
    "view(float32)": lambda x: dlbridge.from_dlpack(x).view("float32"),
    ARGUMENT: TWICE,
    OUT: lambda x: TWICE(np.ones(3, "f4"), out=x),
    FED: feed,
}
IMPORTS = {"torch": ("torch",), "jax": ("jax",), "tensorflow": ("tensorflow",), "[0]": ("torch",)}
TAKING = ("from_dlpack", "as_tensor", "asarray", "to_dlpack", "convert_tree: at ['a']")
EXCHANGES = (*TAKING, "to_numpy", "explain(to numpy)")
ANY = (*EXCHANGES, "to_torch", "convert_tree: at [0]", "equal", ARGUMENT, FED)
MEMORY = np.zeros(256, np.uint8)


def lie(**changes: Any) -> Callable[[Any], Any]:
    """Return what makes a producer of float32[3], changed as asked."""
    what = Description(data=MEMORY.ctypes.data, keeps=MEMORY).but(**changes)
    device = what.device if what.device[0] in range(1, 18) else (1, 0)
    return lambda _: ModernProducer(what, device=device)


def broken(came: str, **changes: Any) -> Row:
    return Row(lie(**changes), came, "dlbridge.inspect(x)", ANY)


def consumed(_: Any) -> Any:
    capsule = np.ones(3, "f4").__dlpack__()
    dlbridge.from_dlpack(capsule)
    return capsule


def readonly(_: Any) -> Any:
    array = np.ones(3, "f4")
    array.flags.writeable = False
    return array


def conjugate(framework: Any) -> Any:
    torch = framework("torch")
    return torch.ones(3, dtype=torch.complex64).conj()


def dispatching(framework: Any) -> Any:
    torch = framework("torch")

    class Wrapper(torch.Tensor):  # type: ignore[misc, name-defined]
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, *_: Any) -> Any:
            raise AssertionError

    return Wrapper(torch.ones(3))


class Interface:
    """With the CUDA array interface."""

    def __init__(self, **fields: Any) -> None:
        known = {"data": (4096, False), "shape": (3,), "typestr": "<f4", "version": 3}
        self.__cuda_array_interface__ = known | fields


COPY = "pass copy=None"
REFUSALS: dict[str, list[Row]] = {
    "alignment": [
        Row(
            lambda _: np.zeros(80, "u1")[1:13].view("f4"),
            "float32[3] on cpu",
            "dlbridge.aligned_numpy()",
            ("to_jax", "to_tensorflow"),
        ),
        Row(lambda _: np.zeros(9, "u1")[1:], "it is 0x", "tensor.copy()", ("view(float32)",)),
    ],
    "byte_order": [
        Row(lambda _: np.ones(3, ">f4"), ">f4 and shape (3,)", COPY, (*TAKING, "to_torch")),
        Row(lambda _: np.ones(3, ">f4"), "not in the machine's", "x.astype(", (ARGUMENT, OUT)),
        Row(lambda _: Interface(typestr=">f4"), "'>f4'", "native order", ("from_dlpack",)),
    ],
    "conjugate": [
        Row(conjugate, "lazy (conjugate)", "x.resolve_conj()", (*EXCHANGES, "to_jax")),
    ],
    "negative_bit": [
        Row(lambda f: conjugate(f).imag, "(negative_bit)", "x.resolve_neg()", EXCHANGES),
    ],
    "consumed": [
        Row(consumed, "this capsule", "export a new one", (*TAKING, "to_numpy", "equal", FED)),
    ],
    "copy_required": [
        Row(lambda _: np.float32(3), "numpy.float32", COPY, EXCHANGES),
        Row(lambda _: [1.0, 2.0], "got list", COPY, ("as_tensor", "asarray", "to_dlpack")),
        Row(lambda _: np.float32(3), "numpy.float32", "the kernel writes it", (OUT,)),
    ],
    "device": [
        Row(
            lie(device=(8, 0)),
            "float32[3] on metal:0",
            "copy it to a device that the consumer serves first",
            ("to_numpy", "to_torch", "explain(to torch)", "convert_tree: at [0]"),
        ),
        Row(lie(device=(2, 0)), "float32[3] on cuda:0", 'device="cpu"', ("to_numpy",)),
        Row(lie(device=(8, 0)), "metal:0", "with its own framework", (FED,)),
    ],
    "flags": [broken("ndim 1, dtype code 2", flags=8)],
    "lanes": [
        broken("0 lanes", dtype=(2, 32, 0)),
        Row(
            lie(dtype=(2, 32, 4)),
            "float32x4[3] on cpu",
            "view it with a scalar dtype",
            ("to_numpy", "to_torch", "explain(to torch)", "convert_tree: at [0]", FED),
        ),
        Row(
            lie(dtype=(2, 32, 4)),
            "float32x4",
            "view it as a dtype without",
            ("Tensor.__setitem__",),
        ),
    ],
    "ndim": [
        broken("ndim -1", ndim=-1),
        Row(
            lie(shape=(1,) * 100, strides=(1,) * 100),
            "… 100 dimensions] on cpu",
            "reshape it to fewer dimensions",
            ("to_numpy", "explain(to numpy)", FED),
        ),
    ],
    "null_data": [
        broken("ndim 1, dtype code 2, 32 bits", data=None),
    ],
    "null_shape": [broken("ndim 1", shape=None, ndim=1)],
    "overflow": [
        broken("ndim 1", shape=(2**61,), strides=(0,)),
        Row(lambda _: Interface(shape=(2**70,)), str(2**70), "fit 64 bits", ("from_dlpack",)),
    ],
    "shape": [broken("ndim 1", shape=(-1,))],
    "readonly": [
        Row(
            readonly,
            "read-only float32[3] on cpu",
            'readonly="copy"',
            ("to_torch", "explain(to torch)", "convert_tree: at [0]"),
        ),
        Row(readonly, "a legacy capsule", "max_version=(1, 0)", ("to_dlpack",)),
        Row(readonly, "a read-only Tensor", "tensor.copy()", ("Tensor.__setitem__",)),
        Row(readonly, "read-only f32[3]", "pass a writable copy", (OUT,)),
    ],
    "stream": [
        Row(lambda _: Interface(stream=0), "got 0", "None, 1, 2 or the address", ("from_dlpack",)),
    ],
    "strides": [
        Row(
            lambda _: np.zeros(3, "f4, u1")["f0"],
            "<f4 and shape (3,)",
            COPY,
            (*TAKING, "to_torch", "explain(to torch)"),
        ),
        Row(
            lambda _: np.ones(6, "f4")[::-2],
            "float32[3] on cpu, strides (-2,)",
            COPY,
            ("to_torch", "to_jax", "to_tensorflow", "explain(to torch)", "convert_tree: at [0]"),
        ),
        Row(lambda _: np.zeros(3, "f4, u1")["f0"], "multiple", "the kernel writes it", (OUT,)),
    ],
    "subclass": [
        Row(dispatching, "Wrapper", "pass the tensor that it wraps", (*EXCHANGES, "equal", FED)),
    ],
    "version": [Row(lie(version=(2, 0)), "2.0", "update dlbridge", ANY)],
}
# Elsewhere: `sharded` needs two devices (tests/peers/test_jax.py), `overlap` a second argument,
# `consumer` a framework that fails (below) and `lent` a call of the producer's
# (test_lent_memory.py).
OTHERS = {"consumer", "lent", "overlap", "sharded"}

ROWS = [
    pytest.param(reason, row, call, id=f"{reason}-{number}-{call}")
    for reason, rows in REFUSALS.items()
    for number, row in enumerate(rows)
    for call in row.calls
]


def test_the_tables_have_every_reason() -> None:
    tried = {reason for _, reason, *_ in (*NOT_TENSORS.values(), *TORCH.values())} - {"type"}
    assert tried | REFUSALS.keys() | OTHERS == REASONS.keys()


@pytest.mark.parametrize(("reason", "row", "call"), ROWS)
def test_a_refusal_names_the_call_that_the_user_made(
    framework: Any, reason: str, row: Row, call: str
) -> None:
    for name, modules in IMPORTS.items():
        for module in modules if name in call else ():
            framework(module)
    if call == FED:
        framework("array_api_compat")
    x = row.make(framework)
    with pytest.raises(dlbridge.ExchangeError) as caught:
        WAYS[call](x)
    text = str(caught.value)
    assert text.startswith(call), text
    inner = text.removeprefix(call)
    assert not re.search(r"(from_dlpack|__dlpack__|to_numpy|take_object): ", inner), text
    assert caught.value.reason == reason, text
    assert row.came in text, text
    assert row.advice in text, text
    assert text.endswith(f" [{reason}]")
    assert text.count(f"[{reason}]") == 1


@pytest.mark.parametrize("call", ["from_dlpack", "as_tensor", "asarray", "to_dlpack", "equal", FED])
def test_no_policy_is_advised_that_the_call_lacks(framework: Any, call: str) -> None:
    torch = framework("torch")
    if call == FED:
        framework("array_api_compat")
    with pytest.raises(dlbridge.ExchangeError, match=r"pass x\.detach\(\) \[requires_grad\]$"):
        WAYS[call](torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_refused_feed_names_the_tensor_in_sessions_of_any_framework(
    framework: Any, name: str
) -> None:
    """Also where the run itself converts it, in a step of its own."""
    torch = framework("torch")
    framework("array_api_compat")
    framework(name)
    with tf.Graph().as_default() as graph:
        doubled = tf.placeholder(tf.float32, [None], name="p") * 2.0
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with (
        tf.Session(graph=graph, framework=name) as session,
        pytest.raises(dlbridge.ExchangeError, match=r"^Session\.run: value for 'p:0'") as caught,
    ):
        session.run(doubled, {"p:0": torch.eye(3).to_sparse()[0] if name == "jax" else quantised})
    assert "x.to_dense()" in str(caught.value) or "x.dequantize()" in str(caught.value)


def test_a_refused_result_names_session_run(framework: Any) -> None:
    torch = framework("torch")
    framework("array_api_compat")
    with tf.Graph().as_default() as graph:
        doubled = tf.multiply(tf.placeholder(tf.float32, [None], name="p"), 2.0, name="twice")
    with (
        tf.Session(graph=graph, framework="torch") as session,
        pytest.raises(dlbridge.ExchangeError, match=r"^Session\.run: fetch twice: ") as caught,
    ):
        session.run(doubled, {"p:0": torch.ones(3, device="meta")})
    assert caught.value.reason == "lazy"


def test_overlapping_memory_is_refused_with_both_arguments() -> None:
    memory = np.ones(4, "f4")
    with pytest.raises(dlbridge.ExchangeError) as caught:
        TWICE(memory[:3], out=memory[1:])
    assert str(caught.value) == (
        f"{OUT}': expected memory of its own for f32[n], got memory shared with 'x' for f32[3] "
        "(numpy.ndarray, cpu); pass a copy, or wrap the kernel with overlap='allow' [overlap]"
    )


def test_a_capsule_is_asked_for_no_stream_on_the_cpu() -> None:
    with pytest.raises(dlbridge.ExchangeError, match=r"^to_dlpack: stream must be None on the CPU"):
        dlbridge.to_dlpack(X, stream=1)
