"""GraphDefs in text, right and wrong, for the tests of imports.

Each case was tried in TensorFlow; `test_import_like_tensorflow.py` tries them again where it is
installed. The rules are those of TensorFlow 1.15: what is refused, what is
accepted.
"""

from __future__ import annotations

DTYPE = "attr { key: 'dtype' value { type: DT_FLOAT } }"
T = "attr { key: 'T' value { type: DT_FLOAT } }"


def attr(key: str, value: str) -> str:
    """Return an attribute in text."""
    return f"attr {{ key: '{key}' value {{ {value} }} }}"


def node(name: str, op: str, inputs: str = "", more: str = "") -> str:
    """Return a node in text; inputs are parted by spaces."""
    listed = " ".join(f"input: '{each}'" for each in inputs.split())
    return f"node {{ name: '{name}' op: '{op}' {listed} {more} }}\n"


def placeholder(name: str, more: str = "") -> str:
    """Return a placeholder of float32."""
    return node(name, "Placeholder", "", f"{DTYPE} {more}")


def identity(name: str, inputs: str, more: str = T) -> str:
    """Return an identity, of float32 unless `more` says otherwise."""
    return node(name, "Identity", inputs, more)


def constant(name: str, tensor: str, dtype: str = "DT_FLOAT") -> str:
    """Return a constant from a TensorProto in text."""
    more = attr("dtype", f"type: {dtype}") + attr("value", f"tensor {{ {tensor} }}")
    return node(name, "Const", "", more)


def dims(*sizes: int) -> str:
    """Return a shape in text."""
    return "shape { " + " ".join(f"dim {{ size: {size} }}" for size in sizes) + " }"


A = placeholder("a")
B = identity("b", "a")
STRING = node("s", "Placeholder", "", attr("dtype", "type: DT_STRING"))
NUMBERS = attr("N", "i: %d")
POOL = T + attr("ksize", "list { %s }") + attr("strides", "list { i: 1 i: 1 i: 1 i: 1 }")

# Defect -> the graph. TensorFlow refuses every one of them.
REFUSED = {
    "a name that is not unique": A + A,
    "an op type that does not exist": A + node("x", "NoSuchOp"),
    "no op type": "node { name: 'a' }",
    "a call of a function": "library { function { signature { name: 'f' } } }"
    + identity("c", "a")
    + A.replace("Placeholder", "f_unknown"),
    "no attribute T": A + identity("b", "a", ""),
    "no value of a constant": node("a", "Const", "", DTYPE),
    "no input": A + identity("b", ""),
    "too many inputs": A + identity("b", "a a"),
    "an input that does not exist": identity("b", "zz"),
    "a control input that does not exist": A + identity("b", "a ^q"),
    "an empty input": A + "node { name: 'b' op: 'Identity' input: '' " + T + "}",
    "a result that does not exist": A + identity("b", "a:1"),
    "a huge index": A + identity("b", "a:99999999999999999999"),
    "a negative index": A + identity("b", "a:-1"),
    "an index that is not a number": A + identity("b", "a:x"),
    "a control input with an index": A + identity("b", "a ^a:0"),
    "a control input before data": A + placeholder("z") + identity("b", "^z a"),
    "a node that reads itself": identity("b", "b"),
    "two nodes in a cycle": identity("b", "c") + identity("c", "b"),
    "a cycle of control inputs": node("c", "NoOp", "^d") + node("d", "NoOp", "^c"),
    "a cycle and an op type that does not exist": identity("b", "b") + node("x", "NoSuchOp"),
    "an int for a type": A + identity("b", "a", attr("T", "i: 3")),
    "no value of an attribute": A + identity("b", "a", attr("T", "")),
    "an empty list for a type": A + identity("b", "a", attr("T", "list { }")),
    "a list for a shape": placeholder("a", attr("shape", "list { i: 1 }")),
    "a placeholder of a value": A + identity("b", "a", attr("T", "placeholder: 'x'")),
    "a type that is not allowed": STRING + node("b", "AddV2", "s s", attr("T", "type: DT_STRING")),
    "type 0": node("a", "Placeholder", "", attr("dtype", "type: DT_INVALID")),
    "type 77": node("a", "Placeholder", "", attr("dtype", "type: 77")),
    "a reference type": node("a", "Placeholder", "", attr("dtype", "type: DT_FLOAT_REF")),
    "a type that differs from the input's": A + identity("b", "a", attr("T", "type: DT_INT32")),
    "N below its minimum": A + node("b", "AddN", "", T + NUMBERS % 0),
    "a negative N": A + node("b", "AddN", "", T + NUMBERS % -1),
    "an N that is not the number of inputs": A + node("b", "AddN", "a", T + NUMBERS % 2),
    "a huge N": A + node("b", "AddN", "a", T + NUMBERS % 4_000_000_000),
    "a word that is not allowed": A
    + node("b", "MaxPool", "a", POOL % "i: 1 i: 1 i: 1 i: 1" + attr("padding", "s: 'FOO'")),
    "a list below its minimum": A
    + node("b", "MaxPool", "a", POOL % "i: 1 i: 1 i: 1" + attr("padding", "s: 'SAME'")),
    "a list of the wrong kind": A
    + node("b", "Squeeze", "a", T + attr("squeeze_dims", "list { f: 1 }")),
    "a name with a space": placeholder("a b"),
    "a name that begins with _": placeholder("_a"),
    "a name that begins with -": placeholder("-a"),
    "a name with a colon": placeholder("a:0"),
    "a name with a caret": placeholder("^a"),
    "a name with a backslash": placeholder("a\\\\b"),
    "a name with a line break": placeholder("a\\nb"),
    "no name": placeholder(""),
    "no device": placeholder("a", "device: 'zzz'"),
    "an extent of -2": placeholder("a", attr("shape", dims(-2))),
    "extents that overflow": placeholder("a", attr("shape", dims(2**62, 2**62))),
    "255 dimensions": placeholder("a", attr("shape", dims(*[1] * 255))),
    "dimensions of an unknown rank": placeholder(
        "a", attr("shape", "shape { dim { size: 2 } unknown_rank: true }")
    ),
    "_output_shapes that contradict": placeholder(
        "a", attr("shape", dims(2)) + attr("_output_shapes", f"list {{ {dims(3)} }}")
    ),
    "too few _output_shapes": placeholder("a", attr("_output_shapes", "list { }")),
    "_output_shapes below -1": placeholder("a", attr("_output_shapes", f"list {{ {dims(-3)} }}")),
    "shapes that contradict": placeholder("a", attr("shape", dims(2)))
    + placeholder("c", attr("shape", dims(3)))
    + node("b", "AddV2", "a c", T),
    "readers must be newer": A + "versions { producer: 134 min_consumer: 100000 }",
    "readers must not be like this": A + "versions { producer: 134 bad_consumers: 2474 }",
    "a negative producer": A + "versions { producer: -1 }",
    "a constant with a negative extent": constant("a", "dtype: DT_FLOAT tensor_" + dims(-1)),
    "colocation with what does not exist": placeholder(
        "a", attr("_class", "list { s: 'loc:@zz' }")
    ),
}

# TensorFlow 2.21 accepts these; we do not.
REFUSED_BY_US = {
    "a constant of unknown rank": constant(
        "a", "dtype: DT_FLOAT tensor_shape { unknown_rank: true } float_val: 1"
    ),
    "a constant without a type": constant("a", "tensor_" + dims(2) + " float_val: 1"),
}

# Both accept these.
ACCEPTED = {
    "nothing": "",
    "an attribute that is unknown": A + identity("b", "a", T + attr("zzz", "i: 3")),
    "an unknown attribute without a name": A + identity("b", "a", T + attr("", "b: true")),
    "an unknown attribute of a list": A + identity("b", "a", T + attr("zzz", "list { i: 3 }")),
    "inputs that stand further down": identity("b", "a") + A + identity("c", "b"),
    "all in the wrong order": identity("d", "c") + identity("c", "b") + B + A,
    "index 0": A + identity("b", "a:0"),
    "index 00": A + identity("b", "a:00"),
    "the same control input twice": A + placeholder("z") + identity("b", "a ^z ^z"),
    "an input that is also a control input": A + identity("b", "a ^a"),
    "a private attribute": A + identity("b", "a", T + attr("_zzz", "i: 3")),
    "a default of a newer version": A
    + node("b", "MatMul", "a a", T + attr("grad_a", "b: false") + attr("grad_b", "b: false")),
    "an empty list": A + node("b", "Squeeze", "a", T + attr("squeeze_dims", "list { }")),
    "names with all characters": placeholder("9a>b") + placeholder(".a/_b-C") + placeholder("a//b"),
    "names that differ in capital letters": A + placeholder("A"),
    "a short device": placeholder("a", "device: '/cpu:0'"),
    "a device without an index": placeholder("a", "device: '/gpu'"),
    "a job of digits": placeholder("a", "device: '/job:1'"),
    "_output_shapes that tell more": placeholder(
        "a", attr("_output_shapes", f"list {{ {dims(3)} }}")
    ),
    "too many _output_shapes": placeholder(
        "a", attr("_output_shapes", "list { shape {} shape {} }")
    ),
    "_output_shapes of another kind": placeholder("a", attr("_output_shapes", "i: 3")),
    "no versions": A,
    "an old producer": A + "versions { producer: 21 min_consumer: 2 bad_consumers: 5 }",
    "a producer of the future": A + "versions { producer: 100000 }",
    "a constant of another type": constant(
        "a", "dtype: DT_FLOAT tensor_shape { } float_val: 1", "DT_INT32"
    ),
    "a constant of 32 GiB": constant("a", "dtype: DT_FLOAT tensor_" + dims(2**33) + "float_val: 1"),
    "colocation": placeholder("q", "device: '/cpu:0'")
    + placeholder("a", "device: '/gpu:1'" + attr("_class", "list { s: 'loc:@q' }")),
    "functions": A + "library { function { signature { name: 'f' } } }",
}
