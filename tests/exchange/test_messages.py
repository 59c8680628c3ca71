"""The texts of refusals: each names the call that the user made, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import DLBridgeError

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
    "set": ({1}, "type", "set", "convert_tree"),
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
