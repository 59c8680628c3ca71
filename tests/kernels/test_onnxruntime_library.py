"""Libraries that are operators of ONNX Runtime by themselves: `dlbridge_onnxruntime.h`.

What the header reads of a schema, and makes of shapes, is compared with what Python says; runs of
sessions with those whose operators Python registered.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.schema_strategies import bound_calls

import dlbridge
from dlbridge.errors import DLBridgeError
from dlbridge.frameworks.onnxruntime import ELEMENT_TYPES
from dlbridge.kernels.library import include_directory
from dlbridge.kernels.schema import LIST_KINDS, Described, Schema

HERE = Path(__file__).resolve().parent
NUMBERS = {triple: number for number, triple in ELEMENT_TYPES.items() if triple[1] >= 8}
KINDS = {"int": 1, "bool": 1, "float": 2, "str": 3, "int[]": 4, "float[]": 5}
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")


def build(source: Path, target: Path, *flags: str) -> Path:
    """Compile C or C++, without a warning of the headers."""
    names = ("c++", "g++", "clang++") if source.suffix == ".cpp" else ("cc", "gcc", "clang")
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip(f"there is no compiler for {source.name}")
    standard = "-std=c++17" if source.suffix == ".cpp" else "-std=c11"
    command = [compiler, standard, "-O2", f"-I{include_directory()}", *WARNINGS, *flags]
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        [*command, str(source), "-o", str(target)],
        check=False, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


# ---- schemas, against Python ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def peer_in_c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the library made of onnxruntime_peer.c."""
    folder = tmp_path_factory.mktemp("peer")
    made = build(HERE / "onnxruntime_peer.c", folder / "peer.so", "-shared", "-fPIC")
    return ctypes.CDLL(str(made))


@pytest.fixture(scope="session")
def read(peer_in_c: Any) -> Any:
    """Return `read(schema, shapes, sizes)`: the lines that the peer in C writes."""
    peer = peer_in_c.peer_read
    peer.restype = None

    def ask(text: str, shapes: Sequence[Any] = (), sizes: Sequence[int] = ()) -> list[str]:
        ndims = [-1 if shape is None else len(shape) for shape in shapes]
        dims = [extent for shape in shapes for extent in shape or ()]
        room = ctypes.create_string_buffer(1 << 16)
        peer(
            text.encode(),
            (ctypes.c_int * 32)(*ndims),
            (ctypes.c_int64 * max(len(dims), 1))(*dims),
            (ctypes.c_int64 * (len(sizes) + 1))(*sizes),
            room,
            ctypes.c_size_t(len(room)),
        )
        return room.value.decode().splitlines()

    return ask


def why_not(schema: Schema) -> str:
    """Return a part of why no model can have a schema's operator, or ""."""
    if any(part.kind == "dtype" for part in schema.scalars):
        return "is a dtype"
    if any(part.optional and part.mutated for part in schema.tensors):
        return "writes a tensor that may be left out"
    if not (schema.results or schema.mutated):
        return "no results"
    counts = [len(element_types(part.dtypes)) for part in schema.dtypes]
    if 0 in counts:
        return "ONNX Runtime does not have"
    return "1000 combinations" if np.prod(counts, dtype=float) > 1000 else ""


def element_types(dtypes: Sequence[Any]) -> list[int]:
    triples = [each.triple for each in dtypes] or list(NUMBERS)
    return sorted(NUMBERS[each] for each in triples if each in NUMBERS)


def described(schema: Schema) -> list[str]:
    """Return what the peer has to write of an operator's arguments and results."""
    sizes = {place for place, _ in (*schema.sizes, *schema.spread)}
    lines = []
    for place, part in enumerate(schema.scalars):
        length = -1 if part.length is None else part.length
        head = f"scalar {part.name} {KINDS[part.kind]} {length} {int(not part.optional)} "
        lines.append(f"{head}{int(place in sizes)} {literal(part.kind, part.default)}")
    variables = {part.variable: number for number, part in enumerate(schema.dtypes)}
    for part in (*schema.tensors, *schema.results):
        numbers = " ".join(map(str, element_types(part.dtype.dtypes)))
        flags = f"{int(getattr(part, 'optional', False))} {int(getattr(part, 'mutated', False))}"
        lines.append(f"tensor {variables[part.dtype.variable]} {len(part.dims)} {flags} {numbers}")
    return lines


def literal(kind: str, value: Any) -> str:
    if value is None or repr(value) == "MISSING":
        return "none"
    if isinstance(value, tuple):
        return " ".join(["list", *[literal(kind[:-2], each).split()[1] for each in value]])
    if kind == "float":
        return f"float {'-' if np.signbit(value) and value != value else ''}{value:.17g}"
    return f"{'str' if kind == 'str' else 'int'} {value if kind == 'str' else int(value)}"


def without_text(line: str) -> str:
    """Return a line of a tensor without its type in brackets, and its numbers in order."""
    if not line.startswith("tensor "):
        return line
    head, _, numbers = line.replace("]]", "] ]").rpartition("]")
    ordered = " ".join(map(str, sorted(map(int, numbers.split()))))
    return f"{head.partition(' [')[0]} {ordered}"


@given(call=bound_calls())
def test_schemas_and_shapes_are_read_as_by_python(call: Any, read: Any) -> None:
    """Arguments, defaults, dtypes; which shapes fit; the shapes of results."""
    schema, tensors, values = call
    shapes = [None if each is None else each.shape for each in tensors]
    sizes: list[int] = []
    for part, value in zip(schema.scalars, values, strict=True):
        if part.kind in LIST_KINDS:  # those of floats, and None, stand for nothing
            sizes += (
                [len(value), *value] if isinstance(value, tuple) and part.kind == "int[]" else [0]
            )
        else:
            sizes.append(value if isinstance(value, int) else 0)
    name, *lines = read(str(schema), shapes, sizes)
    assert name == f"name {schema.namespace} {schema.name}"
    why = why_not(schema)
    if why:
        assert len(lines) == 1, lines
        assert re.match(f"why .*{why}", lines[0]), lines
        return
    expected = described(schema)
    found = [without_text(line).replace("-nan", "nan") for line in lines]
    assert found[: len(expected)] == [line.replace("-nan", "nan") for line in expected]
    assert lines[len(expected) :] == outcome(schema, tensors, values)


def outcome(schema: Schema, tensors: Sequence[Described | None], values: Sequence[Any]) -> Any:
    """Return what the peer has to write of a call."""
    fitting = [  # ONNX Runtime itself compares dtypes
        each and each._replace(dtype=_any_of(part.dtype))
        for each, part in zip(tensors, schema.tensors, strict=True)
    ]
    try:
        bindings = schema.bind(fitting, values)
    except DLBridgeError:
        return ExpectRefusal()
    return [_result(result, bindings) for result in schema.results]


def _any_of(dtype: Any) -> Any:
    return dtype.only or (dtype.dtypes[0] if dtype.dtypes else dlbridge.DType("float32"))


def _result(result: Any, bindings: Any) -> str:
    extents: list[int] = []
    for dim in result.dims:
        if dim.kind == "pack":
            extents += bindings.packs[str(dim.value)]
            continue
        try:
            extents.append(dim.evaluate(bindings.names))
        except ArithmeticError:
            return "result none"
    bad = any(extent is None or not 0 <= extent < 2**63 for extent in extents)
    return "result none" if bad else " ".join(["result", *map(str, extents)])


class ExpectRefusal:
    """Equals what begins with a refusal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and len(other) == 1 and other[0].startswith("refused ")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "a refusal"


NO_LISTS = "an operator of ONNX Runtime takes no lists of tensors here"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a::f(x: f32[n]) -> f32[n", "its schema: ',' or ']' is expected (column 25)"),
        ("a::f(x: f32[n] y: f32[n]) -> f32[n]", "its schema: ',' or ')' is expected (column 16)"),
        ("a::f(x: f32[n]) -> f32[n] more", "its schema: the end is expected (column 27)"),
        ("a::f(x: f32[n, $]) -> f32[n]", "a character that means nothing there (column 16)"),
        ("a::f(x: f32[n], a: int[65]) -> f32[n]", "too many numbers"),
        (f"a::f(x: f32[n], a: int[] = {[1] * 65}) -> f32[n]", "too many numbers"),
        ("a::f(x: f32[n], a: int[2] = [1]) -> f32[n]", "the default has another number"),
        ("a::f(x: f32[n], a: int[] = [1.5]) -> f32[n]", "this number is none of this kind"),
        ("a::f(x: f32[n], a: int[] = [None]) -> f32[n]", "a number is expected"),
        ("a::f(x: f32[n], a: int[] = [True]) -> f32[n]", "a literal of its kind is expected"),
        ("a::f(x: f32[n], a: float[] = [True]) -> f32[n]", "a literal of its kind is expected"),
        ("a::f(x: f32[n], a: int = True) -> f32[n]", "a literal of its kind is expected"),
        ("a::f(x: f32[n], a: bool = 1) -> f32[n]", "a literal of its kind is expected"),
        ("a::f(x: f32[n], a: bool = -True) -> f32[n]", "a literal of its kind is expected"),
        ("a::f(x: f32[n], a: int? = -None) -> f32[n]", "a literal of its kind is expected"),
        ("a::f(x: f32[n], a: int = None) -> f32[n]", "only an optional argument can be None"),
        ("a::f(x: f32[n]? = 3) -> f32[2]", "a literal of its kind is expected"),
        ("a::f(x: f32[n], a: int[] = 3) -> f32[n]", "the default of a list stands in brackets"),
        ("a::f(x: f32[n], a: int[] = [1 2]) -> f32[n]", "',' or ']' is expected"),
        (f"a::f({', '.join(f'a{i}: int[]' for i in range(9))}) -> f32[1]", "too many scalars"),
        ("a::f(x: f32[n][]) -> f32[n]", f"{NO_LISTS} (column 15)"),
        ("a::f(x: int[][]) -> f32[1]", f"{NO_LISTS} (column 14)"),
        ("a::f(x: f32[?n][]) -> f32[1]", f"{NO_LISTS} (column 13)"),
        ("a::f(x: like y) -> f32[1]", "no tensor before it has this name"),
        ("a::f(x: f32[n], *, s: str = 'a", "a string without an end"),
        ("a::f(x: f32[n], *, s: str = '\\N') -> f32[n]", "an escape that is not known here"),
        ("a::f(x: f32[n], *, i: int = 1.5) -> f32[n]", "this number is none of this kind"),
        (f"a::f(x: f32[{'(' * 40}n{')' * 40}]) -> f32[n]", "too many parentheses"),
        (f"a::f(x: f32[{'+'.join('n' * 17)}]) -> f32[n]", "this expression is too long"),
        (f"a::f({', '.join(f'x{i}: f32[]' for i in range(33))})", "too many tensors"),
        (f"a::f(x: f32[{', '.join(f'n{i}' for i in range(33))}])", "too many names"),
        (f"a::f(x: f32[{'9' * 30}])", "an integer of at most 63 bits is expected"),
        ("a::f(x: f32[1-2])", "this dimension is no extent"),
        ("a::f(x: c64[n]) -> c64[n]", "a dtype that ONNX Runtime does not have"),
        ("a::f(x: f32x4[n]) -> f32x4[n]", "a dtype that ONNX Runtime does not have"),
    ],
)
def test_what_no_model_can_have_is_said(text: str, why: str, read: Any) -> None:
    name, said = read(text)
    assert name == "name a f"
    assert why in said, said


def test_a_node_for_which_there_is_no_memory_is_not_of_another_kind(peer_in_c: Any) -> None:
    """Its values are text, for which it allocates as for lists."""
    room = ctypes.create_string_buffer(1 << 16)
    schema = b"a::f(x: f32[n], a: float[], *, s: str, b: float[2]? = [0.5, 1]) -> f32[n]"
    peer_in_c.peer_open.restype = None
    peer_in_c.peer_open(schema, room, ctypes.c_size_t(len(room)))
    *failures, last = room.value.decode().splitlines()
    assert failures == ["1 out of memory"] * 6  # the node, two lists, three texts
    assert last == "made"


@pytest.mark.parametrize("text", ["", "f(x: f32[n])", "a::(x: f32[n])", "\x01", "::f()"])
def test_a_text_without_a_name_is_no_schema(text: str, read: Any) -> None:
    assert read(text) == ["no name"]


@given(
    text=st.text(alphabet="abn_:;()[]{}<>=?!|*+-/., 019.eE\"'\\x0\nlikefdtype", max_size=80).map(
        "a::f(".__add__
    )
)
def test_any_text_is_read_to_its_end(text: str, read: Any) -> None:
    """As an operator, or with a reason why it is none."""
    assert read(text.replace("\0", ""))[0] == "name a f"


def test_a_mismatch_names_argument_type_and_shape(read: Any) -> None:
    text = "a::f(x: f32[b, 2*n], y: f32[*s]  ?) -> f32[b]"
    assert read(text, [(2, 3), None])[-1] == (
        "refused argument 'x': expected f32[b, 2*n], got the shape [2, 3]"
    )
    assert read(text, [(), (1,)])[-1].endswith("got the shape []")
    scalar = "a::f(x: f32[n], *, k: int) -> f32[k]"
    said = "refused attribute 'k' is a dimension: it cannot be -1"
    assert read(scalar, [(2,)], [-1])[-1] == said


# ---- sessions, against those with Python's operators ---------------------------------------------

DOMAIN = "own_operators"
SCHEMAS = {
    "like": "(x: f32|f64|i64[*s]) -> like x",
    "cast": "(x: A=f32|i32[n], y: B=u8|f16[n]) -> (B[n], A[n])",
    "solved": "(x: float[..., 2*n]) -> float[..., n]",
    "far": "(x: f32[n, (n-1)*k+m], y: f32[k], z: bf16[m]) -> (f32[n*k], i64[])",
    "sized": "(x: f32[n], *, k: int = 3, left: int = 0) -> (f32[k], f32[left+n])",
    "written": "(x!: f32[n, m], y: f32[m], z!: i32[m]) -> f32[n]",
    "left_out": "(x: f32[n], y: f32[n]? = None, z: i64[m]? = None) -> f32[n]",
    "scalars": (
        "(x: f32[n], *, flag: bool, some: float = 1e-3, word: str = 'a\\tb', "
        "count: int = -7, rest: float? = None, large: float = inf) -> f32[n]"
    ),
    "from_sizes": "(*, n: int) -> f32[n]",
    "listed": (
        "(x: f32[n], axes: int[]? = [7, -8], pair: int [ 2 ]? = None, *, some: float[] = [], "
        "w: float[3]? = [0.1, -inf, 2]) -> f32[n]"
    ),
    "reshaped": "(x: f32[*b, n], b: int[], rest: int[2]) -> (f32[n, *b], f64[2, *rest])",
    "no_list": "(x: float[2], y: f32[n]) -> float[2]",
    "none": "(x: f32[0, n]) -> f32[n, 0]",
    "number": "(x: f32[n]) -> float",
    "numbers": "(x: f32|f64[n], w: float[] = [1.5]) -> (int, y: f32|f64[n], big : bool , float)",
}
EXPORTS = "\n".join(
    f"static int {name}(void *c, DLTensor *t, int n) {{ return fill(c, t, n); }}\n"
    f'DLB_EXPORT({name}, "{DOMAIN}::{name}{text}");'
    for name, text in SCHEMAS.items()
).replace("\\", "\\\\")
SOURCE = (
    r"""
#include <string.h>
#include "dlbridge_kernel.h"
#include "dlbridge_onnxruntime.h"

static uint32_t mix(uint32_t hash, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 16777619u;
    return hash;
}

static int64_t bytes_of(const DLTensor *x) {
    int64_t size = x->dtype.bits / 8;
    for (int i = 0; i < x->ndim; i++)
        size *= x->shape[i];
    return x->ndim < 0 ? 0 : size;
}

/* All but the first input becomes what follows from that and from what a kernel is told. */
static int fill(void *context, DLTensor *t, int n) {
    const dlb_context *call = (const dlb_context *)context;
    uint32_t hash = mix(2166136261u, call->kernel, strlen(call->kernel));
    for (int64_t i = 0; i < call->scalar_count; i++) {
        const dlb_scalar *scalar = &call->scalars[i];
        hash = mix(hash, &scalar->kind, sizeof scalar->kind);
        int64_t count = 0, others = 0;
        const int64_t *ints = dlb_get_ints(context, (int)i, &count);
        const double *floats = dlb_get_floats(context, (int)i, &others);
        if (ints != NULL || floats != NULL) {
            hash = mix(hash, ints, (size_t)count * sizeof *ints);
            hash = mix(hash, floats, (size_t)others * sizeof *floats);
        } else if (scalar->kind == DLB_STRING)
            hash = mix(hash, scalar->value.s, strlen(scalar->value.s));
        else if (scalar->kind != DLB_NONE)
            hash = mix(hash, &scalar->value, sizeof scalar->value);
    }
    for (int i = 0; i < n; i++) {
        hash = mix(hash, &t[i].ndim, sizeof t[i].ndim);
        if (t[i].ndim < 0)
            continue;
        hash = mix(hash, &t[i].dtype, sizeof t[i].dtype);
        hash = mix(hash, t[i].shape, (size_t)t[i].ndim * sizeof(int64_t));
        for (int k = 0; k < t[i].ndim; k++)
            if (t[i].shape[k] > 1)
                hash = mix(hash, &t[i].strides[k], sizeof(int64_t));
    }
    if (n > 1 && bytes_of(&t[0]) > 0)
        hash = mix(hash, t[0].data, (size_t)bytes_of(&t[0]));
    for (int i = n > 1; i < n; i++)
        for (int64_t k = 0; k < bytes_of(&t[i]); k++)
            ((unsigned char *)t[i].data)[k] = (unsigned char)((hash >> k % 3 * 8) & 0x3f);
    return 0;
}
"""
    + EXPORTS
    + rf"""
static int pointers(DLTensor *x, DLTensor *y, DLTensor *out) {{
    ((float *)out->data)[0] = ((float *)x->data)[0] - ((float *)y->data)[0];
    return ((float *)x->data)[0] == 9 ? 42 : 0;
}}
DLB_EXPORT(pointers, "{DOMAIN}::pointers(x: f32[1], y: f32[1]) -> f32[1]", .abi = "pointers");

static void raw(const float *x, float *out, int64_t n) {{
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
}}
DLB_EXPORT(raw, "{DOMAIN}::raw(x: f32[n]) -> f32[n]",
           .abi = "void(const float *x, float *out, int64_t n)");

static int typed(void *c, DLTensor *t, int n) {{
    return dlb_set_error(c, "never called: %d %p", n, (void *)t);
}}
DLB_EXPORT(typed, "{DOMAIN}::typed(x: f32[n], *, to: dtype) -> to[n]");

static int fails(void *c, DLTensor *t, int n) {{
    return n < 0 || t == NULL ? 1 : dlb_set_error(c, "%s", "not today");
}}
DLB_EXPORT(fails, "{DOMAIN}::fails(x: f32[n]) -> f32[n]");

static int address(void *c, DLTensor *t, int n) {{
    (void)c;
    *(int64_t *)t[n - 1].data = (int64_t)((uintptr_t)t[0].data % 64);
    return 0;
}}
DLB_EXPORT(address, "{DOMAIN}::address(x: f32[4]) -> i64[]", .align = 64);
static int later(void *c, DLTensor *t, int n) {{ return fill(c, t, n); }}
DLB_EXPORT(later, "{DOMAIN}::later(x: f32[n]) -> f32[n]", .version = 3);
DLB_EXPORT(typed_elsewhere, "other_operators::add(x: f32[n], y: f32[n]) -> f32[n]");
"""
)
ADD = """
static int typed_elsewhere(void *c, DLTensor *t, int n) {
    (void)c;
    (void)n;
    for (int64_t i = 0; i < t[0].shape[0]; i++)
        ((float *)t[2].data)[i] = ((float *)t[0].data)[i] + ((float *)t[1].data)[i];
    return 0;
}
"""


@pytest.fixture(scope="session", params=["c", "cpp"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library of SOURCE, compiled as C and as C++."""
    folder = tmp_path_factory.mktemp("library")
    source = folder / f"own.{request.param}"
    head, exports = SOURCE.split('#include "dlbridge_onnxruntime.h"')
    text = f'{head}#include "dlbridge_onnxruntime.h"\n{ADD}{exports}'
    source.write_text(text)
    flags = ["-shared", "-fPIC", "-fvisibility=hidden"]
    return build(source, folder / f"lib{request.param}.so", *flags)


def onnx_of(
    name: str, inputs: dict[str, Any], outputs: int, domain: str, version: int = 1, **given: Any
) -> bytes:
    """Return a model of one node; an input is (element type, shape), or None for one left out."""
    helper = pytest.importorskip("onnx").helper
    onnx = pytest.importorskip("onnx")
    used = {key: value for key, value in inputs.items() if value is not None}
    names = [key if value is not None else "" for key, value in inputs.items()]
    results = [f"out{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(name, names, results, domain=domain, **given)],
        "graph",
        [helper.make_tensor_value_info(key, *value) for key, value in used.items()],
        [onnx.ValueInfoProto(name=each) for each in results],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(domain, version)]
    made: bytes = helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
    return made


def session_of(data: bytes, library: Path, *, by_python: bool = False) -> Any:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if by_python:
        dlbridge.register_onnxruntime(options, dlbridge.load_library(library))
    else:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(data, options)


X = {"f4": 1, "f8": 11, "i8": 7, "i4": 6, "u1": 2, "f2": 10, "bf": 16}
CALLS: dict[str, Any] = {
    "a scalar": ("like", {"x": ("f4", ())}, 1, {}),
    "no elements": ("like", {"x": ("i8", (3, 0))}, 1, {}),
    "a type of three": ("like", {"x": ("f8", (2, 1, 3))}, 1, {}),
    "two variables": ("cast", {"x": ("i4", (3,)), "y": ("f2", (3,))}, 2, {}),
    "solved": ("solved", {"x": ("f2", (2, 3, 8))}, 1, {}),
    "solved, and it does not fit": ("solved", {"x": ("f8", (3,))}, 1, {}),
    "solved after others": (
        "far", {"x": ("f4", (3, 9)), "y": ("f4", (4,)), "z": ("bf", (1,))}, 2, {}
    ),
    "an expression that differs": (
        "far", {"x": ("f4", (3, 8)), "y": ("f4", (4,)), "z": ("bf", (1,))}, 2, {}
    ),
    "sizes by default": ("sized", {"x": ("f4", (2,))}, 2, {}),
    "sizes": ("sized", {"x": ("f4", (2,))}, 2, {"k": 5, "left": 2}),
    "a negative size": ("sized", {"x": ("f4", (2,))}, 2, {"k": -5}),
    "written": (
        "written", {"x": ("f4", (2, 3)), "y": ("f4", (3,)), "z": ("i4", (3,))}, 3, {}
    ),
    "another shape": (
        "written", {"x": ("f4", (2, 3)), "y": ("f4", (2,)), "z": ("i4", (3,))}, 3, {}
    ),
    "all given": (
        "left_out", {"x": ("f4", (3,)), "y": ("f4", (3,)), "z": ("i8", (3,))}, 1, {}
    ),
    "one left out": ("left_out", {"x": ("f4", (3,)), "y": None, "z": ("i8", (2,))}, 1, {}),
    "the last left out": ("left_out", {"x": ("f4", (3,)), "y": ("f4", (3,))}, 1, {}),
    "all left out": ("left_out", {"x": ("f4", (3,))}, 1, {}),
    "defaults": ("scalars", {"x": ("f4", (3,))}, 1, {"flag": 1}),
    "attributes": (
        "scalars", {"x": ("f4", (3,))}, 1,
        {"flag": 0, "some": 2.5, "word": "é", "count": 2**62, "rest": 3, "large": "0.1"},
    ),
    "one is missing": ("scalars", {"x": ("f4", (3,))}, 1, {}),
    "one is of another kind": ("scalars", {"x": ("f4", (3,))}, 1, {"flag": 1, "count": 0.5}),
    "text that is no number": ("scalars", {"x": ("f4", (3,))}, 1, {"flag": 1, "rest": "much"}),
    "lists by default": ("listed", {"x": ("f4", (3,))}, 1, {}),
    "lists": (
        "listed", {"x": ("f4", (3,))}, 1,
        {"axes": [-5, 2**62], "pair": [0, 1], "some": [0.5, -1.0], "w": [1, 2, -3]},
    ),
    "a list that is text": ("listed", {"x": ("f4", (3,))}, 1, {"some": "0.1, 1e300,-inf"}),
    "text that is not a list": ("listed", {"x": ("f4", (3,))}, 1, {"some": "0.1,"}),
    "text for integers": ("listed", {"x": ("f4", (3,))}, 1, {"axes": "1"}),
    "one number for a list": ("listed", {"x": ("f4", (3,))}, 1, {"axes": 1}),
    "floats for integers": ("listed", {"x": ("f4", (3,))}, 1, {"axes": [1.0]}),
    "a list of another length": ("listed", {"x": ("f4", (3,))}, 1, {"pair": [1]}),
    "too long a list": ("listed", {"x": ("f4", (3,))}, 1, {"axes": range(65)}),
    "a list that is a shape": (
        "reshaped", {"x": ("f4", (2, 1, 3))}, 2, {"b": [2, 1], "rest": [0, 4]}
    ),
    "a list that is another shape": (
        "reshaped", {"x": ("f4", (2, 1, 3))}, 2, {"b": [2, 2], "rest": [1, 4]}
    ),
    "a negative extent in a list": (
        "reshaped", {"x": ("f4", (2, 1, 3))}, 2, {"b": [2, 1], "rest": [1, -1]}
    ),
    "a list is missing": ("reshaped", {"x": ("f4", (2, 1, 3))}, 2, {"b": [2, 1]}),
    "what looks like a list": (
        "no_list", {"x": ("f8", (2,)), "y": ("f4", (3,))}, 1, {}
    ),
    "no inputs": ("from_sizes", {}, 1, {"n": 4}),
    "no elements either": ("none", {"x": ("f4", (0, 3))}, 1, {}),
    "a number": ("number", {"x": ("f4", (3,))}, 1, {}),
    "numbers among tensors": ("numbers", {"x": ("f8", (3,))}, 4, {"w": [0.5]}),
    "pointers": ("pointers", {"x": ("f4", (1,)), "y": ("f4", (1,))}, 1, {}),
    "a failure": ("fails", {"x": ("f4", (1,))}, 1, {}),
    "a dtype that the schema lacks": ("like", {"x": ("u1", (1,))}, 1, {}),
    "too few dimensions": (
        "written", {"x": ("f4", (3,)), "y": ("f4", (3,)), "z": ("i4", (3,))}, 3, {}
    ),
}  # fmt: skip
REFUSED = {
    "solved, and it does not fit", "an expression that differs", "a negative size", "another shape",
    "one is missing", "one is of another kind", "text that is no number", "text that is not a list",
    "text for integers", "one number for a list", "floats for integers", "a list of another length",
    "too long a list", "a list that is another shape", "a negative extent in a list",
    "a list is missing", "a failure", "a dtype that the schema lacks", "too few dimensions",
}  # fmt: skip


def result_of(data: bytes, feeds: dict[str, Any], library: Path, *, by_python: bool) -> Any:
    """Return the shapes that were inferred and the results, or that there was a refusal."""
    try:
        session = session_of(data, library, by_python=by_python)
        runs = [session.run_with_ort_values(None, feeds) for _ in range(2)]
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        return "refused"
    inferred = [(each.type, each.shape) for each in session.get_outputs()]
    return inferred, [[bytes_of(value) for value in run] for run in runs]


def bytes_of(value: Any) -> Any:
    return value.data_type(), tuple(value.shape()), dlbridge.from_dlpack(value).tolist()


def values_for(inputs: dict[str, Any]) -> dict[str, Any]:
    ort = pytest.importorskip("onnxruntime")
    found = {}
    for place, (name, given_) in enumerate(inputs.items()):
        if given_ is None:
            continue
        kind, shape = given_
        array = np.arange(place, place + np.prod(shape, dtype=int)).reshape(shape)
        dtype = "u2" if kind == "bf" else kind
        found[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.ascontiguousarray(array.astype(dtype)), X[kind]
        )
    return found


@pytest.mark.parametrize("named", [False, True], ids=["extents", "symbols"])
@pytest.mark.parametrize("what", CALLS)
def test_a_session_gives_what_it_gives_with_the_operators_of_python(
    what: str, named: bool, library: Path
) -> None:
    """Whether extents of the model's inputs are known or have names only."""
    name, inputs, outputs, attributes = CALLS[what]
    shapes = {
        key: value
        and (X[value[0]], [f"{key}{i}" for i in range(len(value[1]))] if named else value[1])
        for key, value in inputs.items()
    }
    data = onnx_of(name, shapes, outputs, DOMAIN, **attributes)
    feeds = values_for(inputs)
    by_itself = result_of(data, feeds, library, by_python=False)
    assert by_itself == result_of(data, feeds, library, by_python=True)
    assert (by_itself == "refused") is (what in REFUSED), by_itself


def test_errors_are_in_the_words_of_the_kernel_and_of_the_schema(library: Path) -> None:
    def said(name: str, *shapes: Any, **attributes: Any) -> str:
        inputs = {f"x{place}": (1, shape) for place, shape in enumerate(shapes)}
        outputs = {"written": 3, "reshaped": 2}.get(name, 1)
        data = onnx_of(name, inputs, outputs, DOMAIN, **attributes)
        feeds = {key: np.full(shape, 9, "f4") for key, (_, shape) in inputs.items()}
        with pytest.raises(Exception, match=f"{DOMAIN}::{name}") as refused:
            session_of(data, library).run(None, feeds)
        return str(refused.value)

    assert f"{DOMAIN}::fails: not today" in said("fails", (2,))
    assert f"{DOMAIN}::pointers: the kernel returned status 42" in said("pointers", (1,), (1,))
    text = said("solved", (2, 3))
    assert "argument 'x': expected float[..., 2*n], got the shape [2, 3]" in text
    assert "attribute 'flag' is missing" in said("scalars", (2,))
    assert "attribute 'count' is of another kind" in said("scalars", (2,), flag=1, count=1.5)
    assert "attribute 'pair' has another number of elements" in said("listed", (2,), pair=[1])
    assert "the kernel takes a list, float[] of 3" in said("listed", (2,), w=[1.0])
    text = said("reshaped", (1, 2), b=[-1], rest=[1, 1])
    assert "attribute 'b' is a dimension: it cannot be -1" in text
    assert "is no operator of ONNX Runtime: only dlbridge calls its C sig" in said("raw", (2,))
    assert "is no operator of ONNX Runtime: its schema: an argument is a" in said("typed", (2,))


def test_each_namespace_is_a_domain(library: Path) -> None:
    data = onnx_of("add", {"x": (1, ["n"]), "y": (1, ["n"])}, 1, "other_operators")
    x, y = np.float32([1, 2]), np.float32([3, 4])
    session = session_of(data, library)
    assert session.run(None, {"x": x, "y": y})[0].tolist() == [4, 6]
    assert session.get_outputs()[0].shape == ["n"]


def test_an_operator_is_of_the_version_that_it_was_exported_with(library: Path) -> None:
    """And of all later ones; a model that was made before it is not opened."""
    x = np.ones(2, "f4")
    for by_python in (False, True):
        for version in (3, 4):
            data = onnx_of("later", {"x": (1, (2,))}, 1, DOMAIN, version=version)
            session = session_of(data, library, by_python=by_python)
            assert session.run(None, {"x": x})[0].shape == (2,)
        data = onnx_of("later", {"x": (1, (2,))}, 1, DOMAIN, version=2)
        with pytest.raises(Exception, match=f"{DOMAIN}:later.* is not a registered function/op"):
            session_of(data, library, by_python=by_python)


def test_a_version_beyond_what_the_runtime_knows_is_said_and_an_older_header_says_none(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.c").write_text(
        f"""
        #include "dlbridge_kernel.h"
        #include "dlbridge_onnxruntime.h"
        static int copy(void *c, DLTensor *t, int n) {{
            (void)c, (void)n;
            ((float *)t[1].data)[0] = ((float *)t[0].data)[0];
            return 0;
        }}
        static int never(void *c, DLTensor *t, int n) {{ return copy(c, t, n); }}
        DLB_EXPORT(never, "{DOMAIN}::never(x: f32[1]) -> f32[1]", .version = 1001);
        static const dlb_export older = {{
            .size = offsetof(dlb_export, version), .symbol = "copy", .is_dltensors = 1,
            .function = (void (*)(void))copy, .schema = "{DOMAIN}::copy(x: f32[1]) -> f32[1]",
            .version = 7}}; /* beyond its size: not of the description */
        extern const void *const dlb_export_copy;
        DLB_LISTED_ const void *const dlb_export_copy = &older;
        """
    )
    library = build(tmp_path / "own.c", tmp_path / "libown.so", "-shared", "-fPIC")
    session = session_of(onnx_of("copy", {"x": (1, (1,))}, 1, DOMAIN), library)
    assert session.run(None, {"x": np.float32([5])})[0].tolist() == [5]
    with pytest.raises(Exception, match=r"never is no operator .*: its \.version is not from 1 to"):
        session_of(onnx_of("never", {"x": (1, (1,))}, 1, DOMAIN), library)


def test_many_threads_open_and_run_sessions(library: Path) -> None:
    data = onnx_of("like", {"x": (11, ["n"])}, 1, DOMAIN)
    expected = session_of(data, library).run(None, {"x": np.ones(4)})[0].tolist()
    found: list[Any] = []

    def run() -> None:
        for _ in range(5):
            session = session_of(data, library)
            found.extend(session.run(None, {"x": np.ones(4)})[0].tolist() for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 100


def test_memory_that_an_application_binds_is_looked_at(library: Path) -> None:
    """Inputs that lie badly are copied; an output on an input is refused."""
    ort = pytest.importorskip("onnxruntime")
    if not hasattr(ort.OrtValue, "from_dlpack"):
        pytest.skip("onnxruntime before 1.31 imports no DLPack")
    memory = np.zeros(64, "f4")
    session = session_of(onnx_of("address", {"x": (1, [4])}, 1, DOMAIN), library)
    for start in range(16):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", dlbridge.to_onnxruntime(memory[start : start + 4]))
        binding.bind_output("out0")
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].item() == 0
    session = session_of(onnx_of("like", {"x": (1, [4])}, 1, DOMAIN), library)
    for start in (1, 4, 7):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", dlbridge.to_onnxruntime(memory[4:8]))
        binding.bind_ortvalue_output("out0", dlbridge.to_onnxruntime(memory[start : start + 4]))
        with pytest.raises(Exception, match="has memory shared with tensor 0"):
            session.run_with_iobinding(binding)


def test_a_runtime_that_is_too_old_is_refused_in_words(library: Path) -> None:
    """It is asked for no table that it does not have: it would print a message."""
    texts: list[bytes] = []
    asked: list[int] = []
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(
        lambda code, text: texts.append(text) or 0x1234
    )
    table = (ctypes.c_void_p * 1)(ctypes.cast(create, ctypes.c_void_p).value)
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
        lambda version: asked.append(version) or ctypes.addressof(table)
    )
    number = ctypes.create_string_buffer(b"1.20.3")
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(number))
    base = (ctypes.c_void_p * 2)(
        *[ctypes.cast(each, ctypes.c_void_p).value for each in (get_api, get_version)]
    )
    register = ctypes.CDLL(str(library)).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == 0x1234
    assert asked == [1]
    assert b"1.21 and later have; this is 1.20.3" in texts[0]


# ---- without Python ------------------------------------------------------------------------------


def find_runtime() -> Path:
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("onnxruntime is not installed")
    found = sorted((Path(spec.origin).parent / "capi").glob("libonnxruntime.so*"))
    return found[0] if found else pytest.skip("onnxruntime brings no shared library")


def test_a_program_of_cpp_runs_a_model_without_python(tmp_path: Path, library: Path) -> None:
    program = build(HERE / "onnxruntime_program.cpp", tmp_path / "program", "-ldl")
    model = tmp_path / "model.onnx"

    def run(name: str, inputs: Sequence[str]) -> str:
        helper = pytest.importorskip("onnx").helper
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node(name, inputs, ["y"], domain="other_operators")],
            "graph", [info("x", 1, ["n"])], [info("y", 1, ["n"])],
        )  # fmt: skip
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("other_operators", 1)]
        made = helper.make_model(graph, opset_imports=domains, ir_version=8)
        model.write_bytes(made.SerializeToString())
        done = subprocess.run(
            [program, find_runtime(), model, library, "4"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode in (0, 3), done.stderr
        return done.stdout

    first, second = run("add", ["x", "x"]).splitlines()
    assert first == "y: 0 2 4 6"
    assert second.endswith(", without Python")
    assert "error: " in run("subtract", ["x", "x"])
