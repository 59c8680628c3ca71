"""Calls with one wrong argument: the refusal is ours, and names the call of the user.

Each row of `CALLS` is a call that is right. One argument at a time is replaced by something that no
parameter of this kind takes, or one keyword or word is misspelt.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge import check, cuda, mpi, proto
from dlbridge.errors import DLBridgeError

X = np.arange(6, dtype="f4").reshape(2, 3)
NEW = {"device": "cpu", "allocator": None, "alignment": 64}
POLICIES = {
    "device": "cpu", "copy": None, "readonly": "respect", "immutable": "share", "grad": "refuse",
    "layout": "contiguous", "narrow": None, "dtype": "f4", "stream": None,
}  # fmt: skip
STREAMED = {name: value for name, value in POLICIES.items() if name != "stream"}
SOURCE = """#include "dlbridge_kernel.h"
int copy(const DLTensor *x, DLTensor *y) { return 0; }
"""
COSINE = "misuse::cos(x: f64) -> f64"
SCHEMA = "misuse::copy(x: f32[n]) -> (y: f32[n])"


class Call(NamedTuple):
    """A call that is right.

    Attributes:
        name: as refusals name it.
        function: what is called.
        args: by position.
        keywords: by name.
        takes: what is no mistake: "0: int" for the first argument.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    takes: tuple[str, ...] = ()


def tensor() -> dlbridge.Tensor:
    return dlbridge.as_tensor(X)


def stream(*args: Any, **keywords: Any) -> list[Any]:
    return list(dlbridge.stream(*args, **keywords))


def methods() -> list[Call]:
    """Methods of Tensor, which are bound when they are called."""
    rows = {
        "reshape": ((3, 2),), "transpose": (1, 0), "broadcast_to": ((4, 2, 3),), "squeeze": ((),),
        "expand_dims": (0,), "copy": ("C",), "to": ("cpu",), "to_device": ("cpu",), "view": ("f4",),
        "tensor": (2, "f4"), "matrix": ("f4",),
    }  # fmt: skip
    takes = {
        "squeeze": ("0: None", "0: dict"), "expand_dims": ("0: dict",),  # no axes
        "tensor": ("1: None",), "matrix": ("0: None",),
        "copy": ("0: misspelt",),  # a word of one letter
    }  # fmt: skip
    return [
        Call(name, lambda *args, name=name: getattr(tensor(), name)(*args), args, {},
             takes.get(name, ()))
        for name, args in rows.items()
    ]  # fmt: skip


OPTIONAL = ("dtype: None", "device: None", "allocator: None", "copy: None", "layout: None")
NUMBERS = ("0: int", "0: float", "1: int", "1: float", "2: int", "2: float", "1: None")
LIKE = ("0: Tensor", "1: None", *OPTIONAL)

CALLS = [
    *(Call(name, getattr(dlbridge, name), ((2, 3), "f4"), NEW, ("1: None", "allocator: None"))
      for name in ("zeros", "ones", "empty")),
    Call("full", dlbridge.full, ((2, 3), 1, "f4"), NEW,
         ("1: int", "1: float", "2: None", "allocator: None")),
    *(Call(name, getattr(dlbridge, name), (X, "f4"), NEW, LIKE)
      for name in ("zeros_like", "ones_like", "empty_like")),
    Call("full_like", dlbridge.full_like, (X, 1, "f4"), NEW,
         ("1: int", "1: float", "2: None", *OPTIONAL)),
    Call("arange", dlbridge.arange, (0, 4, 1, "f4"), NEW, (*NUMBERS, "3: None", *OPTIONAL)),
    Call("to_numpy", dlbridge.to_numpy, (X,), POLICIES,
         (*OPTIONAL, "narrow: None", "stream: None")),
    Call("explain", dlbridge.explain, (X, "numpy"), POLICIES,
         (*OPTIONAL, "narrow: None", "stream: None")),
    Call("convert_tree", dlbridge.convert_tree, ([X], "numpy"), {"unknown": "refuse", **POLICIES},
         ("0: list", "0: dict", "0: None", "0: int", "0: float", "0: str",  # are kept
          *OPTIONAL, "narrow: None", "stream: None")),
    Call("stream", stream, ([X], "numpy"),
         {"prefetch": 2, "fresh": None, "unknown": "refuse", **STREAMED},
         ("fresh: None", "0: list", "0: dict", *OPTIONAL, "narrow: None")),
    Call("from_dlpack", dlbridge.from_dlpack, (X,), {"device": "cpu", "copy": None, "stream": None},
         (*OPTIONAL, "stream: None")),
    Call("as_tensor", dlbridge.as_tensor, (X,), {"device": "cpu", "copy": None, "stream": None},
         ("0: int", "0: float", *OPTIONAL, "stream: None")),
    Call("to_dlpack", dlbridge.to_dlpack, (X,),
         {"stream": None, "max_version": (1, 0), "dl_device": (1, 0), "copy": None},
         ("0: int", "0: float", "stream: None", "max_version: None", "dl_device: None",
          "copy: None")),
    Call("asarray", dlbridge.asarray, (X, "f4"), {"device": "cpu", "copy": None},
         ("0: int", "0: float", "1: None", *OPTIONAL)),
    Call("from_buffer", dlbridge.from_buffer, (bytes(24), "f4", (6,), 0), {},
         ("1: None", "2: None", "2: list")),
    Call("set_aligned_numpy", dlbridge.set_aligned_numpy, (False,)),
    Call("set_allocator", dlbridge.set_allocator, ("cuda:0", None), {}, ("1: None",)),
    Call("debug_kernels", dlbridge.debug_kernels, (False,), {"nans": True}),
    Call("wrap", dlbridge.wrap, (max, SCHEMA), {"abi": "python:numpy", "mutates": None},
         ("1: None", "abi: None", "mutates: None", "mutates: dict")),
    Call("compile_c", dlbridge.compile_c, (SOURCE, "copy", SCHEMA),
         {"abi": "dltensors", "flags": (), "compiler": None},
         ("0: misspelt", "2: None", "compiler: None")),
    Call("load_library", dlbridge.load_library, ("libm.so.6",), {"schemas": None},
         ("schemas: None", "schemas: dict")),
    Call("Library.wrap", dlbridge.load_library("libm.so.6").wrap, ("cos", COSINE),
         {"abi": "pointers"}, ("1: None",)),
    Call("load_package", dlbridge.load_package, ("numpy",)),
    Call("convert_func", dlbridge.convert_func, (min, np.ndarray, dlbridge.to_dlpack)),
    Call("check_consumer", check.check_consumer, ("numpy:from_dlpack",),
         {"only": [], "timeout": 60.0}, ("0: str", "0: misspelt", "only: None", "timeout: float")),
    Call("check_producer", check.check_producer, ("numpy",),
         {"only": [], "timeout": 60.0}, ("0: str", "0: misspelt", "only: None", "timeout: float")),
    Call("memory_info", cuda.memory_info, ("cuda",)),
    Call("synchronize", cuda.synchronize, ("cuda",)),
    Call("current_stream", cuda.current_stream, ("cuda",)),
    Call("dump_graph_def", proto.dump_graph_def, (None,)),
    Call("dump_graph_text", proto.dump_graph_text, (None,)),
    Call("waitall", mpi.waitall, ([],), {"timeout": 1.0},
         ("0: dict", "timeout: None", "timeout: float")),
    Call("make_ndarray", proto.make_ndarray, (None,)),
    Call("read_attr", proto.read_attr, (None,)),
    Call("write_attr", proto.write_attr, (3, None)),
    *methods(),
]  # fmt: skip
WRONG = {
    "None": None, "int": -7, "str": "wrogn", "list": ["a"], "object": object(), "float": 1.5,
    "dict": {},
}  # fmt: skip
OURS = (DLBridgeError, TypeError, ValueError)
IDS = [call.name for call in CALLS]


def misspell(word: str) -> str:
    """Return a word whose last two letters that differ are swapped."""
    at = next(i for i in range(len(word) - 2, -1, -1) if word[i] != word[i + 1])
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def shorten(word: str) -> str:
    """Return a word without its second letter.

    Python 3.13 itself advises on keywords, but not where a short one has two letters swapped.
    """
    return word[:1] + word[2:]


def refusal(call: Call, args: tuple[Any, ...], keywords: dict[str, Any]) -> str | None:
    """Return what is wrong with the refusal of a call, or None."""
    try:
        call.function(*args, **keywords)
    except OURS as error:
        text = str(error)
        if not re.match(rf"{call.name}(\(.*\))?[:(]", text):
            return f"does not name the call: {type(error).__name__}: {text}"
    except Exception as error:  # what this test finds
        return f"{type(error).__name__}: {error}"
    else:
        return "is accepted"
    return None


def one_wrong(call: Call) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the calls in which one argument is wrong, by what that is."""
    found = {}
    given: dict[int | str, Any] = {**dict(enumerate(call.args)), **call.keywords}
    for place, right in given.items():
        others = {
            kind: value for kind, value in WRONG.items() if f"{place}: {kind}" not in call.takes
        }
        if isinstance(right, str) and f"{place}: misspelt" not in call.takes:
            others["misspelt"] = misspell(right)
        for kind, value in others.items():
            if isinstance(place, int):
                args = (*call.args[:place], value, *call.args[place + 1 :])
                found[f"{place}: {kind}"] = args, call.keywords
            else:
                found[f"{place}: {kind}"] = call.args, {**call.keywords, place: value}
    return found


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_one_wrong_argument_is_refused_in_the_name_of_the_call(call: Call) -> None:
    judged = {case: refusal(call, *given) for case, given in one_wrong(call).items()}
    assert judged
    assert not {case: wrong for case, wrong in judged.items() if wrong is not None}


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_a_misspelt_keyword_suggests_the_nearest(call: Call) -> None:
    for name, value in call.keywords.items():
        others = {key: each for key, each in call.keywords.items() if key != name}
        with pytest.raises((TypeError, dlbridge.errors.ArgumentError)) as caught:
            call.function(*call.args, **others, **{shorten(name): value})
        text = str(caught.value)
        assert re.match(rf"{call.name}(\(.*\))?[:(]", text), text
        assert re.search(rf"[Dd]id you mean '{name}'\?$", text), text


@pytest.mark.parametrize("name", [name for name in mpi.__all__ if name != "Request"])
def test_a_misspelt_keyword_of_a_call_between_processes_suggests_the_nearest(name: str) -> None:
    for keyword in inspect.signature(getattr(mpi, name)).parameters:
        if len(keyword) > 1:  # not `x`
            wrong = keyword[0] + keyword
            with pytest.raises(TypeError) as caught:
                getattr(mpi, name)(**{wrong: None})
            assert re.fullmatch(
                rf"{name}\(\) got an unexpected keyword argument '{wrong}'[;.] "
                rf"[Dd]id you mean '{keyword}'\?",
                str(caught.value),
            )


METHODS = [
    (cls, name)
    for cls in (
        dlbridge.Tensor, dlbridge.Kernel, dlbridge.Library, mpi.Request, tf.Graph, tf.Session,
        tf.Variable, tf.Tensor, tf.Operation, tf.FIFOQueue, tf.VariableScope, tf.train.ClusterSpec,
    )
    for name in dir(cls)
    if not name.startswith("_") and inspect.isfunction(getattr(cls, name))
]  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "name"), METHODS, ids=lambda given: getattr(given, "__name__", given)
)
def test_a_misspelt_keyword_of_a_method_suggests_the_nearest(cls: type, name: str) -> None:
    parameters = inspect.signature(getattr(cls, name)).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return  # they go on to another call
    for each in parameters:
        if each.name != "self" and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            wrong = each.name[0] + each.name
            with pytest.raises(TypeError) as caught:
                getattr(cls, name)(object(), **{wrong: None})
            # A run has one frame of Python, so that only Python itself can advise there.
            is_plain = (cls, name) == (tf.Session, "run") and sys.version_info < (3, 13)
            advice = "" if is_plain else rf"[;.] [Dd]id you mean '{each.name}'\?"
            assert re.fullmatch(
                rf"\w+\.{name}\(\) got an unexpected keyword argument '{wrong}'{advice}",
                str(caught.value),
            )


@pytest.mark.parametrize(
    ("name", "keyword"),
    [("copy", "order"), ("to", "device"), ("to", "copy"), ("reshape", "shape")],
)
def test_a_misspelt_keyword_of_a_method_in_c_suggests_the_nearest(name: str, keyword: str) -> None:
    wrong = shorten(keyword)
    with pytest.raises(TypeError) as caught:
        getattr(tensor(), name)(**{wrong: None})
    assert str(caught.value) == (
        f"Tensor.{name}() got an unexpected keyword argument '{wrong}'; did you mean '{keyword}'?"
    )


def test_wrong_arguments_of_a_run_are_refused_in_its_name() -> None:
    kernel = dlbridge.wrap(np.negative, SCHEMA, abi="python:numpy")
    lists = [None, -7, "wrogn", object(), 1.5, tensor()]  # a Tensor is not a list of its rows
    for wrong in lists:
        with pytest.raises(dlbridge.errors.UnsupportedTypeError) as caught:
            kernel.run(wrong)  # type: ignore[arg-type]
        text = f"misuse::copy: run: tensors must be a list of Tensors, got {type(wrong).__name__}"
        assert str(caught.value) == text
    for wrong in lists:
        with pytest.raises(dlbridge.errors.UnsupportedTypeError, match=r": run: scalars must be a"):
            kernel.run([tensor(), tensor()], wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Kernel\.run\(\) .*'sclars'; did you mean 'scalars'\?$"):
        kernel.run([], sclars=())  # type: ignore[call-arg]
    with pytest.raises(
        dlbridge.errors.UnsupportedTypeError, match=r"publish: key must be a string"
    ):
        kernel.publish(3)  # type: ignore[arg-type]


def test_what_is_given_in_the_wrong_way_says_how_it_is_given() -> None:
    with pytest.raises(TypeError, match=r'^to_numpy\(\) takes .* by name, such as device="cpu"$'):
        dlbridge.to_numpy(X, "cpu")  # type: ignore[call-arg]
    with pytest.raises(dlbridge.errors.ArgumentError, match=r"^to: .*dlbridge\.to_torch\(x\), or"):
        tensor().to("torch")
    with pytest.raises(
        dlbridge.errors.ArgumentError, match=r"^to: copy must be True or False, got"
    ):
        tensor().to("cpu", copy="never")  # type: ignore[arg-type]
    assert tensor().to("cpu", copy=np.True_).data_ptr != X.ctypes.data  # type: ignore[arg-type]
    assert tensor().reshape(shape=(3, 2)).shape == (3, 2)
    with pytest.raises(TypeError, match=r"^Tensor\.copy\(\) takes at most 1 argument \(2 given\)$"):
        tensor().copy("C", "F")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Tensor\.to\(\) takes one device, and copy by name; 2 "):
        tensor().to("cpu", "cuda")  # type: ignore[call-arg]
    with pytest.raises(dlbridge.errors.ArgumentError, match=r"; did you mean 'current'\?$"):
        dlbridge.to_numpy(X, stream="CURRENT")


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: dlbridge.convert("numpy", X), "; what is converted comes first: convert(x, to)"),
        (lambda: dlbridge.convert_tree("numpy", {"a": X}), "comes first: convert_tree(x, to)"),
        (lambda: list(dlbridge.stream("numpy", [X])), "comes first: stream(x, to)"),
        (lambda: dlbridge.convert(X, "cuda:1"), "is a device: convert(x, to, device='cuda:1')"),
        (lambda: dlbridge.to_numpy(x for x in [X]), "; dlbridge.stream(x, to) converts what it"),
        (lambda: dlbridge.to_numpy(map(str, [X])), "; dlbridge.stream(x, to) converts what it"),
        (lambda: dlbridge.to_numpy(X, detach=True), '; did you mean grad="detach"?'),
        (lambda: dlbridge.to_numpy(X, zero_copy=True), "; did you mean copy=False?"),
        (lambda: dlbridge.wrap(SCHEMA, max), "; wrap(function, schema)"),
        (lambda: dlbridge.wrap(max, SCHEMA, abi="np"), "; did you mean 'python:numpy'?"),
        (lambda: dlbridge.compile_c("src/k.c", "f", SCHEMA), "Path('src/k.c').read_text()"),
        (lambda: dlbridge.arange(0, 3, 0), "arange: step must not be zero, got 0"),
        (lambda: dlbridge.to_numpy(X * 1e5, dtype="f2"), "; cast it in its own framework, as"),
        (lambda: dlbridge.wrap(np.negative, SCHEMA, abi="python:numpy")([1.0]), "numpy.asarray(x)"),
        (lambda: tf.Session().run(tf.constant(1), X), "Session.run: feed_dict must be a dict, got"),
    ],
)  # fmt: skip
def test_mistakes_of_the_first_hour_are_answered_with_advice(
    call: Callable[[], object], advice: str
) -> None:
    with tf.Graph().as_default(), pytest.raises(OURS) as caught:
        call()
    assert advice in str(caught.value)


def test_a_framework_that_is_missing_is_reported_by_the_call_that_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for call, ask in {
        "wrap": lambda: dlbridge.wrap(np.negative, SCHEMA, abi="python:cupy"),
        "convert_tree": lambda: dlbridge.convert_tree([X], "cupy"),
        "to_cupy": lambda: dlbridge.to_cupy(X),
        "Session": lambda: tf.Session(framework="cupy"),
    }.items():
        with pytest.raises(dlbridge.FrameworkMissingError) as caught:
            ask()
        text = str(caught.value)
        assert text.startswith(f"{call}: ")
        assert "pip install 'dlbridge[cupy]'" in text


def test_a_module_that_was_not_imported_is_called_that() -> None:
    find: Any = vars(dlbridge)["__getattr__"]
    with pytest.raises(AttributeError, match=r"no attribute 'mpi'; import dlbridge\.mpi first$"):
        find("mpi")


@pytest.mark.parametrize("wrong", [None, -7, ["a"], object(), 1.5, {}])
def test_the_name_of_a_framework_must_be_a_string(wrong: Any) -> None:
    for one in (dlbridge.float32, dlbridge.Device("cpu")):
        with pytest.raises(dlbridge.errors.ArgumentError, match=r"name must be a string, got "):
            one.to(wrong)


def test_a_loader_of_torch_leads_to_stream() -> None:
    data = pytest.importorskip("torch.utils.data")
    for loader in (data.DataLoader([1, 2]), data.TensorDataset()):
        with pytest.raises(
            dlbridge.errors.UnsupportedTypeError, match=r"; dlbridge\.stream\(x, to"
        ):
            dlbridge.to_numpy(loader)


def test_a_misspelt_name_of_a_dtype_or_device_suggests_the_nearest() -> None:
    with pytest.raises(dlbridge.errors.ArgumentError, match=r"^zeros: .*did you mean 'float32'\?$"):
        dlbridge.zeros(2, "flaot32")
    with pytest.raises(dlbridge.errors.ArgumentError, match=r"^zeros: .*did you mean 'cuda'\?$"):
        dlbridge.zeros(2, device="cuad:0")


@pytest.mark.parametrize("wrong", [None, -7, ["a"], object(), 1.5, {}, int])
def test_classes_that_other_calls_make_name_these_calls(wrong: Any) -> None:
    for cls, made_by in ((dlbridge.Kernel, "wrap"), (dlbridge.Library, "load_library")):
        with pytest.raises(
            dlbridge.errors.UnsupportedTypeError, match=rf"^{cls.__name__}: .*dlbridge\.{made_by}\("
        ):
            cls(wrong)


def test_a_refusal_of_a_call_within_a_call_has_the_name_of_the_outer_one_alone() -> None:
    with pytest.raises(dlbridge.errors.ArgumentError, match=r"^compile_c: abi must be one of"):
        dlbridge.compile_c("void f(void) {}", "f", "misuse::f(x: f32[n]) -> f32[n]", abi="nonsense")
