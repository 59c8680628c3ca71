"""The notation in which op types are declared, one line for each, and its parser.

    MatMul(a: T, b: T, *, transpose_a: bool = false, T: {float32, int32}) -> product: T

Before the `*` stand the inputs, after it the attributes, after the arrow the results (none: no
arrow; several: in parentheses). The type of an input or result is

    T               the attribute of that name, of kind `type` (declared below, or implied)
    float32         one dtype, by its DataType name
    N * T           a list of `N` tensors, `N` an attribute of kind `int`
    list(Tin)       a list of tensors whose dtypes are the attribute `Tin`, of kind `list(type)`
    ref T           a reference to a variable

and an attribute is `name: kind`, where kind is one of int, float, bool, string, type, shape,
tensor, func, list(kind), or a set in braces: of dtypes (kind type), or of quoted words (kind
string); a list of a set is `list({…})`. It may go on with a minimum (`N: int >= 1`, of a list its
length) and a default (`axis: int = 0`, `dims: list(int) = []`, `Tout: type = int32`,
`padding: {"SAME", "VALID"} = "SAME"`, `shape: shape = <unknown>`).

An attribute that only an input or result mentions is implied. Its name begins with a capital
letter, so that a misspelt dtype is none.

    declaration = OP "(" [item {"," item} [","]] ")" ["->" results]
    item        = "*" | argument | attribute
    argument    = NAME ":" ["ref"] type
    type        = NAME | NAME "*" NAME | "list" "(" NAME ")"
    attribute   = NAME ":" kind [">=" INTEGER] ["=" value]
    kind        = single | "list" "(" single ")"
    single      = NAME | "{" (NAME {"," NAME} | STRING {"," STRING}) "}"
    results     = argument | "(" [argument {"," argument} [","]] ")"
    value       = INTEGER | NUMBER | "true" | "false" | STRING | NAME | "<unknown>"
                | "[" [value {"," value}] "]"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from ctypes import c_float
from math import isinf
from typing import Any, NamedTuple, NoReturn, TypeVar

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.proto.datatypes import DataType, as_dtype, is_dtype_name
from dlbridge.shape import MAX_RANK, TensorShape
from dlbridge.text import point

# ---- declarations --------------------------------------------------------------------------------


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class Argument(NamedTuple):
    """One input or result of an op type; exactly one of the type fields is set."""

    name: str
    type: DataType | None = None
    type_attr: str | None = None
    number_attr: str | None = None
    type_list_attr: str | None = None
    is_ref: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it stands for several tensors."""
        return self.number_attr is not None or self.type_list_attr is not None


class Attribute(NamedTuple):
    """One attribute of an op type; `default` is MISSING where a value must be given."""

    name: str
    kind: str
    default: Any = MISSING
    minimum: int | None = None
    allowed: tuple[Any, ...] = ()


class Declaration(NamedTuple):
    """An op type as its declaration describes it; `attributes` are by name."""

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attributes: dict[str, Attribute]


def parse(declaration: str) -> Declaration:
    """Parse a declaration.

    Raises:
        UnsupportedTypeError: it is no text.
        ArgumentError: it cannot be read, or declares what cannot be; the place is marked.
    """
    return _Parser(declaration).read()


def write(declaration: Declaration) -> str:
    """Return the text of a declaration, which `parse` reads."""
    parts = [_text_of_argument(each) for each in declaration.inputs]
    attributes = [_text_of_attribute(each) for each in declaration.attributes.values()]
    if attributes:
        parts += ["*", *attributes]
    results = [_text_of_argument(each) for each in declaration.outputs]
    text = f"{declaration.name}({', '.join(parts)})"
    if not results:
        return text
    return f"{text} -> {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}"


def _text_of_argument(argument: Argument) -> str:
    kind = argument.type.name if argument.type is not None else argument.type_attr
    if argument.type_list_attr is not None:
        kind = f"list({argument.type_list_attr})"
    number = f"{argument.number_attr} * " if argument.number_attr is not None else ""
    return f"{argument.name}: {'ref ' if argument.is_ref else ''}{number}{kind}"


def _text_of_attribute(attribute: Attribute) -> str:
    element = attribute.kind.removeprefix("list(").removesuffix(")")
    is_list = element != attribute.kind
    kind = element
    if attribute.allowed:
        kind = f"{{{', '.join(_text_of_value(each) for each in attribute.allowed)}}}"
    text = f"{attribute.name}: {f'list({kind})' if is_list else kind}"
    if attribute.minimum is not None:
        text += f" >= {attribute.minimum}"
    if attribute.default is not MISSING:
        text += f" = {_text_of_value(attribute.default)}"
    return text


def _text_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f'"{value.decode()}"'
    if isinstance(value, DataType):
        return value.name
    if isinstance(value, TensorShape):
        if value.dims is None:
            return "<unknown>"
        return f"[{', '.join('-1' if dim is None else str(dim) for dim in value.as_list())}]"
    if isinstance(value, list):
        return f"[{', '.join(map(_text_of_value, value))}]"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


# ---- words ---------------------------------------------------------------------------------------

_WORD = re.compile(
    r"""\s*(?:
      (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|-inf)
    | (?P<string>"[^"\n]*")
    | (?P<sign><unknown>|->|>=|[()\[\]{},:=*>])
    | (?P<end>\Z)
    | (?P<strange>.)
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)


class _Word(NamedTuple):
    """A word of a text: which kind, what it is, where it begins."""

    kind: str
    text: str
    start: int


def _words(text: str) -> Iterator[_Word]:
    """Yield the words of a text; the last is of the kind "end"."""
    position = 0
    while True:
        found = _WORD.match(text, position)
        assert found is not None
        kind = str(found.lastgroup)
        yield _Word(kind, found[kind], found.start(kind))
        if kind == "end":
            return
        position = found.end()


# ---- the parser ----------------------------------------------------------------------------------

_KINDS = ("int", "float", "bool", "string", "type", "shape", "tensor", "func")
_LARGEST = 2**63 - 1

_Item = TypeVar("_Item")


class _Parser:
    """A declaration, read from left to right."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise UnsupportedTypeError(
                f"register_op: the declaration must be text, got {type(text).__name__}"
            )
        self.text = text
        self.words = _words(text)
        self.next = next(self.words)
        self.names: set[str] = set()
        self.attributes: dict[str, Attribute] = {}

    def read(self) -> Declaration:
        """Return what is declared."""
        name = self._op_name()
        self._expect("(", f"the name {name!r}")
        inputs, is_attribute = [], False
        while not self._accept(")"):
            if not is_attribute and self._accept("*"):
                is_attribute = True
            elif is_attribute:
                self._attribute()
            else:
                inputs.append(self._argument())
            self._end_item(")")
        outputs = self._results() if self._accept("->") else []
        if self.next.kind != "end":
            self._refuse_next("the end" if outputs else "'->' or the end")
        found = [self._settle(*each) for each in (*inputs, *outputs)]
        of_inputs, of_outputs = found[: len(inputs)], found[len(inputs) :]
        return Declaration(name, tuple(of_inputs), tuple(of_outputs), self.attributes)

    # ---- words ---------------------------------------------------------------------------------

    def _advance(self) -> _Word:
        word = self.next
        if word.kind != "end":
            self.next = next(self.words)
        return word

    def _accept(self, sign: str) -> bool:
        """Go past the next word if it is this sign."""
        found = self.next.kind == "sign" and self.next.text == sign
        if found:
            self._advance()
        return found

    def _expect(self, sign: str, after: str) -> None:
        if not self._accept(sign):
            self._refuse_next(f"{sign!r} after {after}")

    def _name(self, what: str) -> _Word:
        if self.next.kind != "name":
            self._refuse_next(what)
        return self._advance()

    def _end_item(self, closing: str) -> None:
        """Go past the comma after an item, unless the bracket closes."""
        closes = self.next.kind == "sign" and self.next.text == closing
        if not closes and not self._accept(","):
            self._refuse_next(f"',' or {closing!r}")

    def _listed(self, closing: str, read: Callable[[], _Item]) -> list[_Item]:
        """Return the items up to a bracket that closes them."""
        found = []
        while not self._accept(closing):
            found.append(read())
            self._end_item(closing)
        return found

    def _refuse_next(self, expected: str) -> NoReturn:
        got = repr(self.next.text) if self.next.kind != "end" else "the end"
        self._refuse(f"expected {expected}, got {got}", self.next)

    def _refuse(self, why: str, word: _Word) -> NoReturn:
        raise ArgumentError(f"register_op: {why}\n{point(self.text, word.start)}")

    # ---- inputs and results --------------------------------------------------------------------

    def _op_name(self) -> str:
        """Return the name of the op type; `>` separates a namespace, as in TensorFlow."""
        name = self._name("the name of the op type, as in 'MatMul(…)'").text
        while self._accept(">"):
            name += ">" + self._name("a name after '>'").text
        return name

    def _own_name(self, what: str) -> _Word:
        """Return the name of an input, result or attribute: no two share one."""
        word = self._name(what)
        if word.text in self.names:
            self._refuse(f"the name {word.text!r} is given twice", word)
        self.names.add(word.text)
        return word

    def _argument(self) -> tuple[Argument, _Word, _Word | None]:
        """Return an input or result whose type may be an attribute that is not known yet.

        With it come the word of its type, and that of its number.
        """
        name = self._own_name("the name of an input or result, '*' or ')'")
        self._expect(":", f"{name.text!r}")
        word = self._name("a type: a dtype, an attribute, 'N * T' or 'list(T)'")
        is_ref = word.text == "ref" and self.next.kind == "name"
        if is_ref:
            word = self._advance()
        if word.text == "list" and self._accept("("):
            word = self._name("the name of an attribute of kind list(type)")
            self._expect(")", f"{word.text!r}")
            return Argument(name.text, type_list_attr=word.text, is_ref=is_ref), word, None
        number = None
        if self._accept("*"):
            number, word = word, self._name("a type after '*'")
        count = None if number is None else number.text
        return Argument(name.text, None, word.text, count, is_ref=is_ref), word, number

    def _results(self) -> list[tuple[Argument, _Word, _Word | None]]:
        return self._listed(")", self._argument) if self._accept("(") else [self._argument()]

    def _settle(self, given: Argument, word: _Word, number: _Word | None) -> Argument:
        """Return an argument whose type is a dtype, or an attribute that is declared or implied."""
        if number is not None:
            self._imply(number, "int", 1)
        if given.type_list_attr is not None:
            self._imply(word, "list(type)", 1)
            return given
        if word.text in self.attributes or not is_dtype_name(word.text):
            self._imply(word, "type", None)
            return given
        return given._replace(type=self._dtype(word), type_attr=None)

    def _imply(self, word: _Word, kind: str, minimum: int | None) -> None:
        """Declare an attribute that only an argument mentions; one that is declared must fit."""
        name = word.text
        found = self.attributes.get(name)
        if found is None:
            if name in self.names:
                self._refuse(f"{name!r} is an input or result, not an attribute", word)
            if not name[0].isupper():
                self._refuse(f"{name!r} is neither a dtype nor an attribute declared here", word)
            self.attributes[name] = Attribute(name, kind, minimum=minimum)
        elif found.kind != kind:
            self._refuse(f"{name!r} must be of kind {kind} here, and is {found.kind}", word)

    # ---- attributes ----------------------------------------------------------------------------

    def _attribute(self) -> None:
        name = self._own_name("the name of an attribute, or ')'")
        self._expect(":", f"{name.text!r}")
        is_list = self.next.text == "list"
        if is_list:
            self._advance()
            self._expect("(", "'list'")
        element, allowed = self._kind()
        if is_list:
            self._expect(")", "the kind of a list's elements")
        kind = f"list({element})" if is_list else element
        minimum = self._minimum(kind) if self._accept(">=") else None
        made = Attribute(name.text, kind, MISSING, minimum, allowed)
        if self._accept("="):
            made = made._replace(default=self._default(made))
        self.attributes[name.text] = made

    def _kind(self) -> tuple[str, tuple[Any, ...]]:
        """Return a kind that is no list, and the values of a set."""
        word = self.next
        if not self._accept("{"):
            kind = self._name(f"a kind: {', '.join(_KINDS)}, list(…) or a set in braces").text
            if kind not in _KINDS:
                self._refuse(f"{kind!r} is not a kind of attribute: {', '.join(_KINDS)}", word)
            return kind, ()
        kind = "string" if self.next.kind == "string" else "type"
        allowed = self._listed("}", lambda: self._value(kind))
        if not allowed:
            self._refuse("a set without members", word)
        return kind, tuple(allowed)

    def _minimum(self, kind: str) -> int:
        word = self.next
        if kind != "int" and not kind.startswith("list("):
            self._refuse(f"a minimum is for int and lists, this is {kind}", word)
        found: int = self._value("int")
        return found

    def _default(self, attribute: Attribute) -> Any:
        """Return the default of an attribute, which its own rules must allow."""
        word, kind = self.next, attribute.kind
        element = kind.removeprefix("list(").removesuffix(")")
        if element in ("tensor", "func"):
            self._refuse(f"the notation has no values of kind {element}", word)
        if element == kind:
            value = self._value(kind)
            values, size = [value], value
        else:
            self._expect("[", "'=', as the default of a list")
            value = values = self._listed("]", lambda: self._value(element))
            size = len(values)
        if attribute.allowed and not set(values) <= set(attribute.allowed):
            self._refuse("the default is not one of the values allowed", word)
        if attribute.minimum is not None and size < attribute.minimum:
            self._refuse(f"the default is below the minimum of {attribute.minimum}", word)
        return value

    # ---- values --------------------------------------------------------------------------------

    def _value(self, kind: str) -> Any:
        return _VALUES[kind](self)

    def _number(self) -> int:
        word = self.next
        if word.kind != "number" or not word.text.removeprefix("-").isdecimal():
            self._refuse_next("an integer")
        self._advance()
        found = int(word.text) if len(word.text) < 30 else 2**63
        if not -_LARGEST - 1 <= found <= _LARGEST:
            self._refuse("this integer does not fit 64 bits", word)
        return found

    def _float(self) -> float:
        word = self.next
        if word.kind != "number" and word.text not in ("inf", "nan"):
            self._refuse_next("a number")
        found = c_float(float(self._advance().text)).value  # a GraphDef holds 32 bits
        if isinf(found) and not word.text.endswith("inf"):
            self._refuse("this number does not fit 32 bits; infinity is inf", word)
        return found

    def _bool(self) -> bool:
        if self.next.text not in ("true", "false"):
            self._refuse_next("true or false")
        return self._advance().text == "true"

    def _string(self) -> bytes:
        word = self.next
        if word.kind != "string":
            self._refuse_next("a string in double quotes")
        self._advance()
        if any("\ud800" <= letter <= "\udfff" for letter in word.text):
            self._refuse("half of a surrogate pair is no Unicode text", word)
        return word.text[1:-1].encode()

    def _type(self) -> DataType:
        return self._dtype(self._name("a dtype"))

    def _dtype(self, word: _Word) -> DataType:
        found = as_dtype(word.text) if is_dtype_name(word.text) else None
        if found is None:
            self._refuse(f"{word.text!r} is not a dtype", word)
        if found.is_ref:
            self._refuse(f"a reference is declared as 'ref {found.base_dtype.name}'", word)
        return found

    def _shape(self) -> TensorShape:
        word = self.next
        if self._accept("<unknown>"):
            return TensorShape(None)
        self._expect("[", "'=', or '<unknown>', as a shape")
        dims = self._listed("]", self._dim)
        if len(dims) > MAX_RANK:
            self._refuse(f"a shape has at most {MAX_RANK} dimensions, got {len(dims)}", word)
        return TensorShape(dims)

    def _dim(self) -> int | None:
        word, found = self.next, self._number()
        if found < -1:
            self._refuse("a dimension is from 0, or -1 where it is unknown", word)
        return None if found == -1 else found


_VALUES: dict[str, Callable[[_Parser], Any]] = {
    "int": _Parser._number,
    "float": _Parser._float,
    "bool": _Parser._bool,
    "string": _Parser._string,
    "type": _Parser._type,
    "shape": _Parser._shape,
}
