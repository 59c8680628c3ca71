"""Schemas from text.

    schema    = NAME "::" NAME "(" [item {"," item} [","]] ")" ["->" results]
    item      = "*" | NAME ["!"] ":" type ["=" default]
    type      = (tensor | "int" | "float" | "bool" | "str" | "dtype" [among] | list) ["?"]
    among     = "in" dtype {"|" dtype}
    list      = ("int" | "float") "[" [INTEGER] "]"
    tensor    = "like" NAME | [NAME "="] dtype {"|" dtype} "[" [dim {"," dim}] "]" [many]
    many      = "[" [NAME | INTEGER] "]"
    dim       = "_" | ["?"] "..." | ["?"] "*" NAME | sum | NAME "<=" sum
    sum       = product {("+" | "-") product}
    product   = operand {("*" | "//") operand}
    operand   = ["?"] NAME | INTEGER | "(" sum ")"
    results   = optional | "(" [result {"," result} [","]] ")"
    result    = [NAME ":"] optional
    optional  = tensor ["?" "if" NAME]
    default   = "None" | "True" | "False" | number | STRING | dtype | "[" [number {"," number}] "]"
    number    = ["-"] (NUMBER | "inf" | "nan")

Brackets make a tensor, and further brackets behind it a list of tensors, of which "?" marks what
may differ between them; `(…)` as in Python may span lines. An argument `int[]`, `int[2]`, `float[]`
or `float[2]` is a list of numbers, unless a tensor of the schema has a type that only a tensor can
have, such as `int[n]`, or is a result: then `int` is the dtype of them all.

Reading ends as soon as there is more than a schema has room for, so time grows with the length of
the text alone.
"""

from __future__ import annotations

import re
from ast import literal_eval
from math import isinf
from typing import Any, NamedTuple, NoReturn

from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.kernels.schema.parts import (
    EACH,
    LIST_KINDS,
    MAX_CALL_TENSORS,
    MAX_LISTED,
    MAX_NESTED,
    MAX_OPERANDS,
    MAX_SCALARS,
    MAX_TENSORS,
    MISSING,
    NAMELESS,
    NUMBER_KINDS,
    SCALAR_KINDS,
    SETS,
    Dim,
    DTypeSet,
    Parameter,
    Result,
    Step,
    default_name,
    find_dtype,
    is_dtype_name,
    is_outside,
    make_expression,
    make_set,
)
from dlbridge.shape import MAX_RANK
from dlbridge.signals import not_from_handler
from dlbridge.text import point

# ---- tokens --------------------------------------------------------------------------------------

_WORD = re.compile(
    r"""\s*(?:
      (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>(?:\d+(?:\.\d+|\.(?!\.))?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<sign>\.\.\.|::|->|//|<=|[()\[\],:=?!|*+-])
    | (?P<end>\Z)
    | (?P<unknown>.)
    )""",
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    """One word: "name", "number", "string", "sign" or "end", its text, where it begins."""

    kind: str
    text: str
    start: int


class Reader:
    """The words of a text, one after another."""

    __slots__ = ("place", "text", "tokens")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise UnsupportedTypeError(f"Schema: expected str, got {type(text).__name__} {text!r}")
        self.text = text
        self.place = 0
        self.tokens: list[Token] = []
        position = 0
        while not self.tokens or self.tokens[-1].kind != "end":
            found = _WORD.match(text, position)
            assert found is not None
            kind = str(found.lastgroup)
            token = Token(kind, found[kind], found.start(kind))
            if kind == "unknown":
                self.refuse(f"unexpected character {token.text!r}", token)
            self.tokens.append(token)
            position = found.end()

    @property
    def next(self) -> Token:
        """The word that comes next; at the end the empty one."""
        return self.tokens[self.place]

    def peek(self, offset: int) -> Token:
        """Return a word further on."""
        return self.tokens[min(self.place + offset, len(self.tokens) - 1)]

    def advance(self) -> Token:
        """Return the next word and go on."""
        token = self.next
        if token.kind != "end":
            self.place += 1
        return token

    def accept(self, *signs: str) -> str:
        """Return the next word if it is one of these signs, and go on; else ""."""
        if self.next.kind == "sign" and self.next.text in signs:
            return self.advance().text
        return ""

    def expect(self, sign: str, after: str) -> None:
        """Go past a sign that must come."""
        if not self.accept(sign):
            self.refuse_next(f"{sign!r} after {after}")

    def expect_name(self, what: str) -> Token:
        """Return a name that must come, and go on."""
        if self.next.kind != "name":
            self.refuse_next(what)
        return self.advance()

    def refuse_next(self, expected: str) -> NoReturn:
        """Refuse the next word: something else was expected."""
        got = repr(self.next.text) if self.next.kind != "end" else "the end"
        self.refuse(f"expected {expected}, got {got}", self.next)

    def refuse(self, why: str, token: Token) -> NoReturn:
        """Raise ArgumentError; its text shows the line and marks the place of `token`."""
        raise ArgumentError(f"Schema: {why}\n{point(self.text, token.start)}")


# ---- the parser ----------------------------------------------------------------------------------

Type = tuple[DTypeSet, tuple[Dim, ...], Dim | None]  # of a tensor: dtype, dims, and `many`
_WORDS = {"None": None, "True": True, "False": False}


class Parser:
    """One text, being read.

    Attributes:
        places: the first words of each parameter, then result.
        variables: the dtypes so far.
        known: the type of each tensor argument so far.
        tensors, scalars: how many there are so far.
        lists: the words that mean lists where brackets with a number or nothing follow.
        operands, nested: of the expression that is being read: its operands so far, and how many
            parentheses are open.
    """

    __slots__ = (
        "known", "lists", "nested", "operands", "places", "reader", "scalars", "tensors",
        "variables",
    )  # fmt: skip

    def __init__(self, text: str) -> None:
        self.reader = Reader(text)
        self.places: list[Token] = []
        self.variables: dict[str, DTypeSet] = {}
        self.known: dict[str, Type] = {}
        self.lists: set[str] = set()
        self.tensors = self.scalars = self.operands = self.nested = 0

    def read(self) -> tuple[str, str, tuple[Parameter, ...], tuple[Result, ...]]:
        """Return namespace, name, parameters and results.

        Raises:
            ArgumentError: the text is no schema; the place is marked.
        """
        reader = self.reader
        namespace = reader.expect_name("a namespace, as in 'mylib::axpy(…)'").text
        reader.expect("::", f"the namespace, as in 'mylib::{namespace}(…)'")
        name = reader.expect_name("the kernel's name after '::'").text
        reader.expect("(", f"the name {name!r}")
        self._find_variables()
        self._find_lists()
        parameters = self._parameters()
        results = self._results() if reader.accept("->") else ()
        if reader.next.kind != "end":
            reader.refuse_next("'->' or the end" if not results else "the end")
        return namespace, name, parameters, results

    def _find_variables(self) -> None:
        """Define the dtypes that arguments of the call say, `to: dtype`, wherever they stand."""
        tokens = self.reader.tokens
        for place, name in enumerate(tokens[:-3]):
            colon, kind, after = tokens[place + 1 : place + 4]
            is_dtype = name.kind == "name" and colon.text == ":" and kind.text == "dtype"
            if is_dtype and after.text not in ("[", "|") and not is_dtype_name(name.text):
                self.variables.setdefault(
                    name.text, DTypeSet("", self._members(place + 3), name.text)
                )

    def _members(self, place: int) -> tuple[DType, ...]:
        """Return the dtypes of `in f32|f64`, where that stands here; a mistake is found later."""
        tokens = self.reader.tokens
        names = [tokens[place + 1].text] if tokens[place].text == "in" else []
        while names and tokens[place + 2 * len(names)].text == "|":
            names.append(tokens[place + 2 * len(names) + 1].text)
        try:
            return make_set(names).dtypes
        except not_from_handler(KeyError):
            return ()

    def _find_lists(self) -> None:
        """Find which words mean lists: those that no type of a tensor must have."""
        tokens, are_results = self.reader.tokens, False
        self.lists = {kind[:-2] for kind in LIST_KINDS}
        for place, token in enumerate(tokens[:-1]):
            are_results = are_results or token.text == "->"
            if token.text not in self.lists or tokens[place + 1].text != "[":
                continue
            mark = tokens[place - 1].text  # "|" and "=" make a set of another name
            is_list = self._is_list(place) and tokens[place - 2].text != "!" and not are_results
            if mark in (":", "->", "(", ",") and not is_list:
                self.lists.discard(token.text)

    def _is_list(self, place: int) -> bool:
        """Return whether a word, "[", a number or nothing, and "]" stand here, and no more "["."""
        inside = [token.text for token in self.reader.tokens[place + 1 : place + 5]]
        if len(inside) > 2 and inside[1].isdecimal():
            del inside[1]
        return inside[:2] == ["[", "]"] and inside[2:3] != ["["]

    # ---- parameters ----------------------------------------------------------------------------

    def _parameters(self) -> tuple[Parameter, ...]:
        reader = self.reader
        found: list[Parameter] = []
        keyword_only = False
        while not reader.accept(")"):
            token = reader.next
            if reader.accept("*"):
                if keyword_only:
                    reader.refuse("a second '*'", token)
                keyword_only = True
            else:
                found.append(self._parameter(keyword_only))
            self._end_item(")")
        if keyword_only and not (found and found[-1].keyword_only):
            reader.refuse("no argument after '*'", token)
        return tuple(found)

    def _end_item(self, closing: str) -> None:
        """Go past the comma after an item, unless the bracket closes."""
        closes = self.reader.next.kind == "sign" and self.reader.next.text == closing
        if not closes and not self.reader.accept(","):
            self.reader.refuse_next(f"',' or {closing!r}")

    def _parameter(self, keyword_only: bool) -> Parameter:
        reader = self.reader
        place = reader.expect_name("an argument's name, '*' or ')'")
        self.places.append(place)
        mutated = bool(reader.accept("!"))
        reader.expect(":", f"{place.text!r}")
        token = reader.next
        is_list = token.text in self.lists and not mutated and self._is_list(reader.place)
        is_scalar = token.text in SCALAR_KINDS and reader.peek(1).text not in ("[", "|")
        dtype: DTypeSet | None = None
        dims: tuple[Dim, ...] = ()
        length: int | None = None
        many: Dim | None = None
        among: DTypeSet | None = None
        if is_scalar or is_list:
            reader.advance()
            self.scalars += 1
            self._limit(self.scalars, MAX_SCALARS, "scalars", place)
            if mutated:
                reader.refuse("'!' marks tensors that are written, this is a scalar", token)
            kind = token.text + "[]" * is_list
            length = self._length() if is_list else None
            among = self._among() if kind == "dtype" and reader.next.text == "in" else None
        else:
            kind = "tensor"
            dtype, dims, many = self.known[place.text] = self._tensor()
        optional = bool(reader.accept("?"))
        default: Any = MISSING
        if reader.accept("="):
            token = reader.next
            default = (
                self._list(kind, length, optional) if is_list else self._default(kind, optional)
            )
            if among is not None and default is not None and not among.accepts(default):
                reader.refuse(f"the default must be one of {among.text}", token)
        return Parameter(
            place.text, kind, dtype, dims, optional, default, keyword_only, mutated, length, many,
            among,
        )  # fmt: skip

    def _among(self) -> DTypeSet:
        """Return the set of dtypes that may be passed."""
        self.reader.advance()
        names = [self.reader.expect_name("a dtype after 'in'")]
        while self.reader.accept("|"):
            names.append(self.reader.expect_name("a dtype after '|'"))
        return self._union(names, "")

    def _length(self) -> int | None:
        """Return the number in the brackets of a list; None where there is none."""
        self.reader.advance()
        token = self.reader.advance()
        if token.text == "]":
            return None
        length: int = self._number(token.text, token, int)
        self._limit(length, MAX_LISTED, "numbers in a list", token)
        self.reader.advance()
        return length

    def _list(self, kind: str, length: int | None, optional: bool) -> tuple[Any, ...] | None:
        """Return the default of a list."""
        reader = self.reader
        token = reader.next
        if token.text == "None":
            found: None = self._default(kind, optional)
            return found
        reader.expect("[", "'=': the default of a list stands in brackets")
        numbers: list[Any] = []
        while not reader.accept("]"):
            numbers.append(self._default(kind[:-2], False))
            self._end_item("]")
        self._limit(len(numbers), MAX_LISTED, "numbers in a list", token)
        if length is not None and len(numbers) != length:
            reader.refuse(f"the default must have {length} numbers, got {len(numbers)}", token)
        return tuple(numbers)

    def _limit(self, count: int, limit: int, what: str, token: Token) -> None:
        if count > limit:
            self.reader.refuse(f"at most {limit} {what}, got {count}", token)

    def _default(self, kind: str, optional: bool) -> Any:
        reader = self.reader
        token = reader.next
        value = self._dtype_literal() if kind == "dtype" else self._literal()
        if value is None:
            if not optional:
                reader.refuse("only an optional argument ('?' after its type) can be None", token)
            return None
        if kind == "tensor":
            reader.refuse("a tensor's default can only be None", token)
        if kind == "float" and type(value) is int:
            value = self._number(value, token, float)
        if type(value).__name__.lower() != kind:
            reader.refuse(f"the default of {kind} must be {kind}, got {value!r}", token)
        return value

    def _dtype_literal(self) -> Any:
        if self.reader.next.text == "None":
            return self._literal()
        token = self.reader.expect_name("the name of a dtype, as in 'f32', or None")
        found = find_dtype(token.text)
        if found is None:
            self.reader.refuse(f"unknown dtype {token.text!r} (f32, bf16, bool, float32, …)", token)
        return found

    def _literal(self) -> Any:
        reader = self.reader
        negative = bool(reader.accept("-"))
        token = reader.next
        if token.kind == "number":
            reader.advance()
            kind = float if set(token.text) & set(".eE") else int
            value = self._number(token.text, token, kind)
        elif token.text in ("inf", "nan"):
            value = float(reader.advance().text)
        elif negative:
            reader.refuse_next("a number after '-'")
        elif token.text in _WORDS:
            return _WORDS[reader.advance().text]
        elif token.kind == "string":
            return self._string(reader.advance())
        else:
            reader.refuse_next("a number, a string in quotes, True, False or None")
        return -value if negative else value

    def _number(self, given: Any, token: Token, kind: type[int | float]) -> Any:
        try:
            number = kind(given)
        except not_from_handler(ValueError, OverflowError) as error:
            # of thousands of digits, or of hundreds
            self.reader.refuse(f"this number is too large: {error}", token)
        if kind is float and isinf(number) and token.kind == "number":
            self.reader.refuse("this number is too large for a float; infinity is inf", token)
        return number

    def _string(self, token: Token) -> Any:
        try:
            return literal_eval(token.text)
        except not_from_handler(SyntaxError, ValueError):
            return self.reader.refuse("a string with a bad escape", token)

    # ---- tensors -------------------------------------------------------------------------------

    def _tensor(self) -> Type:
        reader = self.reader
        first = reader.next
        self.tensors += 1
        self._limit(self.tensors, MAX_TENSORS, "tensors, results included", self.places[-1])
        if first.text == "like" and reader.peek(1).kind == "name":
            return self._like()
        dtype = self._dtype()
        if not reader.accept("["):
            scalar = ", ".join(SCALAR_KINDS)
            reader.refuse_next(f"'[' after {str(dtype)!r} (scalars are {scalar})")
        dims: list[Dim] = []
        while not reader.accept("]"):
            token = reader.next
            dims.append(self._dim())
            if len(dims) > MAX_RANK:
                reader.refuse(f"more than {MAX_RANK} dimensions", token)
            closes = reader.next.kind == "sign" and reader.next.text == "]"
            if not closes:
                if not reader.accept(","):
                    reader.refuse_next("',' or ']'")
                if reader.next.text == "]":
                    reader.refuse_next("a dimension after ','")
        return dtype, tuple(dims), self._many()

    def _many(self) -> Dim | None:
        """Return how many tensors a list has, where one stands here; its brackets are read."""
        reader = self.reader
        if not reader.accept("["):
            return None
        token = reader.next
        if token.text == "_":
            reader.refuse("a list of any length has nothing in its brackets, as in f32[n][]", token)
        if token.kind == "name":
            many = Dim("name", reader.advance().text)
        elif token.kind == "number" and token.text.isdecimal():
            many = Dim("constant", self._number(reader.advance().text, token, int))
            self._limit(int(many.value), MAX_CALL_TENSORS, "tensors in a list", token)
        else:
            many = Dim("any")
        if not reader.accept("]"):
            reader.refuse_next("a number or a name for the length of the list, or ']'")
        if reader.next.text == "[":
            reader.refuse("a list of tensors cannot hold lists", reader.next)
        return many

    def _like(self) -> Type:
        """Return the type of another tensor, which becomes that of this one."""
        self.reader.advance()
        other = self.reader.advance()
        if other.text not in self.known:
            names = ", ".join(self.known) or "there is none"
            self.reader.refuse(
                f"'like {other.text}': expected a tensor argument before it ({names})", other
            )
        dtype, dims, many = self.known[other.text]
        if any(dim.kind == "any" for dim in dims):
            self.reader.refuse(
                f"'like {other.text}': {other.text!r} has a dimension '_', whose extent has no "
                "name to refer to; give it one",
                other,
            )
        return dtype, dims, many

    def _dtype(self) -> DTypeSet:
        reader = self.reader
        first = reader.expect_name("a dtype, as in 'f32[n]', or a scalar type")
        if reader.accept("="):
            return self._define(first)
        names = [first]
        while reader.accept("|"):
            names.append(reader.expect_name("a dtype after '|'"))
        if len(names) == 1 and first.text in self.variables:
            return self.variables[first.text]
        return self._variable(self._union(names, ""))

    def _variable(self, found: DTypeSet) -> DTypeSet:
        """Return the variable without a name for a set; the same set in other words is the same."""
        for known in self.variables.values():
            if not known.name and set(known.dtypes) == set(found.dtypes):
                return known
        return self.variables.setdefault(found.text, found)

    def _define(self, name: Token) -> DTypeSet:
        if is_dtype_name(name.text):
            self.reader.refuse(
                f"{name.text!r} is a dtype, not a name for several, as in 'T=f32|f64[n]'; a scalar "
                f"with a default is one of {', '.join(SCALAR_KINDS)}",
                name,
            )
        if name.text in self.variables:
            self.reader.refuse(
                f"{name.text!r} is defined already; refer to it with '{name.text}[…]'", name
            )
        names = [self.reader.expect_name(f"a dtype after '{name.text}='")]
        while self.reader.accept("|"):
            names.append(self.reader.expect_name("a dtype after '|'"))
        return self.variables.setdefault(name.text, self._union(names, name.text))

    def _union(self, names: list[Token], variable: str) -> DTypeSet:
        try:
            return make_set([token.text for token in names], variable)
        except not_from_handler(KeyError) as error:
            token = next(token for token in names if token.text == error.args[0])
        if token.text == "any":
            self.reader.refuse("'any' stands alone: it takes every dtype", token)
        if token.text in self.variables:
            self.reader.refuse(f"the variable {token.text!r} cannot be part of a union", token)
        known = f"(f32, bf16, bool, float32, …; {', '.join(SETS)})"
        if token.text.isupper():
            known += f"; a name for several is defined first, as in '{token.text}=f32|f64[n]'"
        return self.reader.refuse(f"unknown dtype {token.text!r} {known}", token)

    # ---- dimensions ----------------------------------------------------------------------------

    def _dim(self) -> Dim:
        reader = self.reader
        token = reader.next
        mark = EACH if token.text == EACH and reader.peek(1).text in ("...", "*") else ""
        if mark:
            reader.advance()
        if reader.accept("..."):
            return Dim("pack", mark + NAMELESS)
        if reader.accept("*"):
            return Dim("pack", mark + reader.expect_name("the name of a pack after '*'").text)
        if token.text == "_":
            reader.advance()
            return Dim("any")
        counted = token.text if token.kind == "name" and reader.peek(1).text == "<=" else ""
        if counted:
            reader.advance()
            reader.advance()
        try:
            steps = self.expression()
            dim = make_expression(steps)
        except not_from_handler(ArithmeticError) as error:
            reader.refuse(f"this expression {error}", token)
        if counted:
            steps = [("c", dim.value)] if dim.kind == "constant" else steps
            dim = Dim("counted", counted, tuple(steps))
        if is_outside(dim.value):
            reader.refuse(f"a dimension must be from 0 to 2**63 - 1, got {dim.value}", token)
        return dim

    def expression(self) -> list[Step]:
        """Return the steps of an expression over named dimensions."""
        self.operands = self.nested = 0
        return self._sum()

    def _sum(self) -> list[Step]:
        steps = self._product()
        while sign := self.reader.accept("+", "-"):
            steps += [*self._product(), (sign, "")]
        return steps

    def _product(self) -> list[Step]:
        steps = self._operand()
        while sign := self.reader.accept("*", "//"):
            steps += [*self._operand(), (sign[0], "")]
        return steps

    def _operand(self) -> list[Step]:
        reader = self.reader
        token = reader.next
        self.operands += 1
        if self.operands > MAX_OPERANDS:
            reader.refuse(f"this expression is too long: at most {MAX_OPERANDS} operands", token)
        if token.kind == "number" and token.text.isdecimal():
            return [("c", self._number(reader.advance().text, token, int))]
        if token.text == "_":
            reader.refuse("'_' stands alone: it has no value to compute with", token)
        if token.kind == "name":
            return [("n", reader.advance().text)]
        if reader.accept(EACH):
            name = reader.expect_name(f"the name of a dimension after {EACH!r}")
            if name.text == "_":
                reader.refuse(
                    f"'_' may differ between the tensors anyway: leave out {EACH!r}", name
                )
            return [("n", EACH + name.text)]
        if reader.accept("("):
            self.operands -= 1
            self.nested += 1
            self._limit(self.nested, MAX_NESTED, "parentheses in one another", token)
            steps = self._sum()
            reader.expect(")", "the expression")
            self.nested -= 1
            return steps
        return reader.refuse_next("a dimension (a name, an integer, '_', '...', '*name' or '2*n')")

    # ---- results -------------------------------------------------------------------------------

    def _results(self) -> tuple[Result, ...]:
        reader = self.reader
        found: list[tuple[str, str, Type]] = []
        if not reader.accept("("):
            self.places.append(reader.next)
            found.append(("", *self._result()))
        else:
            while not reader.accept(")"):
                self.places.append(reader.next)
                name = ""
                if reader.peek(1).text == ":":
                    name = reader.expect_name("a result's name").text
                    reader.advance()
                found.append((name, *self._result()))
                self._end_item(")")
        known = {dim.value: dim for _, _, of in found for dim in of[1] if dim.kind == "counted"}
        return tuple(
            [
                Result(
                    name or default_name(index, len(found)), dtype, _resolve(dims, known), many,
                    number,
                )
                for index, (name, number, (dtype, dims, many)) in enumerate(found)
            ]
        )  # fmt: skip

    def _result(self) -> tuple[str, Type]:
        """Return which number a result is, or "", and the type of the tensor."""
        reader = self.reader
        token = reader.next
        if token.text not in SCALAR_KINDS or reader.peek(1).text in ("[", "|", "="):
            return "", self._optional(self._tensor())
        if token.text not in NUMBER_KINDS:
            numbers = ", ".join(NUMBER_KINDS)
            reader.refuse(
                f"a result must be a tensor or a number ({numbers}), not {token.text!r}; return "
                "a tensor of numbers instead",
                token,
            )
        reader.advance()
        self.tensors += 1
        self._limit(self.tensors, MAX_TENSORS, "tensors, results included", self.places[-1])
        dtype = self._variable(make_set([NUMBER_KINDS[token.text]]))
        return token.text, self._optional((dtype, (), None))

    def _optional(self, found: Type) -> Type:
        """Return the type of a result with what decides whether it is there, if that follows."""
        reader = self.reader
        mark = reader.next
        if not reader.accept("?"):
            return found
        dtype, dims, many = found
        if many is not None:
            reader.refuse("a list of tensors cannot be optional: it may be empty", mark)
        if reader.next.text != "if":
            reader.refuse_next("'if' and the argument that decides, as in f32[n]? if save")
        reader.advance()
        return dtype, dims, Dim("if", reader.expect_name("an argument's name").text)


def _resolve(dims: tuple[Dim, ...], known: dict[int | str, Dim]) -> tuple[Dim, ...]:
    """Return dimensions in which the name of what the kernel says means just that."""
    return tuple([known.get(dim.value, dim) if dim.kind == "name" else dim for dim in dims])


def parse_expression(text: str) -> Dim:
    """Return an expression over named dimensions that stands alone, as in `grid="n // 2"`.

    Raises:
        ArgumentError: it is none; the place is marked.
    """
    parser = Parser(text)
    steps = parser.expression()
    if parser.reader.next.kind != "end":
        parser.reader.refuse_next("an operator or the end")
    try:
        return make_expression(steps)
    except not_from_handler(ArithmeticError) as error:
        parser.reader.refuse(f"this expression {error}", parser.reader.tokens[0])
