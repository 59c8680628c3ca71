"""Small mistakes that can be planted in a text of Python or C, one at a time.

Python is read by `ast`, C by its tokens: inside of functions, without comments, texts and
preprocessor. What does not compile afterwards is no mistake, and is left to the compiler.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

FLIPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
SWAPPED = {
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "//": "*",
    "%": "+",
    "<<": ">>",
    ">>": "<<",
    "+=": "-=",
    "-=": "+=",
    "*=": "+=",
    "//=": "*=",
    "and": "or",
    "or": "and",
    "&&": "||",
    "||": "&&",
    "True": "False",
    "False": "True",
    "true": "false",
    "false": "true",
}


class Mistake(NamedTuple):
    """The bytes from `start` to `end` of a text become `new`; `function` is what they stand in."""

    kind: str
    start: int
    end: int
    new: bytes
    function: str

    def plant(self, text: bytes) -> bytes:
        return text[: self.start] + self.new + text[self.end :]

    def line(self, text: bytes) -> int:
        return text.count(b"\n", 0, self.start) + 1

    def diff(self, text: bytes) -> str:
        """Return the lines that change, the old ones with a minus and the new ones with a plus."""
        before, after = (each.decode().splitlines() for each in (text, self.plant(text)))
        changes = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join(each for each in changes if not each.startswith(("---", "+++", "@@")))


# ---- Python --------------------------------------------------------------------------------------

OPERATORS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.LShift: "<<", ast.RShift: ">>", ast.And: "and", ast.Or: "or",
}  # fmt: skip


def in_python(text: bytes) -> Iterator[Mistake]:
    """Yield the mistakes that a Python module can have."""
    yield from _Python(text).mistakes


class _Python(ast.NodeVisitor):
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.lines = [0, *(match.end() for match in re.finditer(rb"\n", text))]
        self.functions: list[str] = []
        self.mistakes: list[Mistake] = []
        self.visit(ast.parse(text))

    def start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def add(self, kind: str, start: int, end: int, new: str) -> None:
        function = ".".join(self.functions)
        self.mistakes.append(Mistake(kind, start, end, new.encode(), function))

    def replace(self, kind: str, node: ast.AST, new: str) -> None:
        self.add(kind, self.start(node), self.end(node), new)

    def swap(self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Replace the operator between two operands, of which either may stand in brackets."""
        start, end = self.end(left), self.start(right)
        spaces = re.escape(old).replace(r"\ ", r"\s+")
        found = re.search(spaces.encode(), self.text[start:end])
        if found is not None:
            self.add(kind, start + found.start(), start + found.end(), new)

    def negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Constant):
            self.replace(
                "condition",
                test,
                f"(not ({self.text[self.start(test) : self.end(test)].decode()}))",
            )

    def visit_definition(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.functions.append(node.name)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        for each in node.body:
            self.visit(each)
        self.functions.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_definition

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out what stands in texts: its places are known from Python 3.12 on only."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            old = OPERATORS[type(operator)]
            self.swap("comparison", left, right, old, FLIPPED[old])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old = OPERATORS[type(node.op)]
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.swap("operator", left, right, old, SWAPPED[old])
        for value in node.values:
            self.replace("operand", value, "True" if old == "and" else "False")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        old = OPERATORS.get(type(node.op), "")
        if old in SWAPPED:
            self.swap("operator", node.left, node.right, old, SWAPPED[old])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.replace("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace("constant", node, str(node.value + 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.remove(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(each, ast.Name | ast.Tuple) for each in node.targets):
            self.remove(node)
        else:
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if "NotImplementedError" not in ast.dump(node):
            self.remove(node)

    def remove(self, node: ast.stmt) -> None:
        self.replace("statement", node, "pass")
        self.generic_visit(node)

    visit_AugAssign = visit_Delete = visit_Continue = visit_Break = remove


# ---- C -------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""
    (?P<left_out> //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:\\\n|[^\n])* | \s+ )
  | (?P<text> "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<number> \d[\w.]* )
  | (?P<sign> -> | \+\+ | -- | <<= | >>= | [=!<>]= | && | \|\| | << | >> | [-+*/%&|^]= | . )
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
OPENED, CLOSED = ("(", "[", "{"), (")", "]", "}")
ENDS = {*CLOSED, "&&", "||", ";", "?", ",", ":"}  # of an operand of && and ||
NO_OPERANDS = {"return", "case", "sizeof", "else"}
DECLARED = {"return", "case", "default", "static", "const", "struct", "typedef", "if", "for"}
DECLARED |= {"while", "do", "switch", "else"}


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def in_c(text: bytes) -> Iterator[Mistake]:
    """Yield the mistakes that the functions of a file of C can have."""
    letters = text.decode("latin-1")  # one for each byte
    tokens = [
        _Token(match.lastgroup or "", match.group(), match.start(), match.end())
        for match in TOKEN.finditer(letters)
        if match.lastgroup != "left_out"
    ]
    pairs = match_brackets(tokens)
    at = 0
    while at < len(tokens):
        if tokens[at].text != "{":
            at += 1
            continue
        end = pairs[at]
        if at and tokens[at - 1].text == ")":
            function = tokens[pairs[at - 1] - 1].text
            for kind, first, last, new in _in_function(letters, tokens, pairs, at + 1, end):
                yield Mistake(kind, first, last, new.encode("latin-1"), function)
        at = end + 1


def match_brackets(tokens: Sequence[_Token]) -> dict[int, int]:
    """Return the place of the other bracket for the place of each."""
    pairs, waiting = {}, []
    for at, token in enumerate(tokens):
        if token.kind == "sign" and token.text in OPENED:
            waiting.append(at)
        elif token.kind == "sign" and token.text in CLOSED:
            pairs[at] = waiting.pop()
            pairs[pairs[at]] = at
    return pairs


def _in_function(
    letters: str, tokens: Sequence[_Token], pairs: dict[int, int], first: int, end: int
) -> Iterator[tuple[str, int, int, str]]:
    for at in range(first, end):
        kind, text, start, stop = tokens[at]
        before = tokens[at - 1]
        if kind == "sign" and text in FLIPPED:
            yield "comparison", start, stop, FLIPPED[text]
        elif text in ("&&", "||"):
            yield "operator", start, stop, SWAPPED[text]
            last = _end_of_operand(tokens, pairs, at + 1)
            yield "operand", tokens[at + 1].start, tokens[last].end, str(int(text == "&&"))
        elif kind == "sign" and text in SWAPPED and text != "*" and _is_operand(before):
            yield "operator", start, stop, SWAPPED[text]
        elif text in ("true", "false"):
            yield "constant", start, stop, SWAPPED[text]
        elif kind == "number" and re.fullmatch(r"\d+|0x[0-9a-fA-F]+", text):
            yield "constant", start, stop, str(int(text, 0) + 1)
        elif text == "if":
            inside = letters[tokens[at + 1].end : tokens[pairs[at + 1]].start]
            yield "condition", tokens[at + 1].end, tokens[pairs[at + 1]].start, f"!({inside})"
        if _begins_statement(tokens, pairs, at) and _can_be_removed(tokens, at):
            last = next(n for n in range(at, end) if tokens[n].text == ";")
            yield "statement", start, tokens[last].end, ";"


def _is_operand(token: _Token) -> bool:
    """Return whether an operator behind this token has it at its left."""
    if token.kind == "name":
        return token.text not in NO_OPERANDS
    return token.kind == "number" or token.text in (")", "]")


def _end_of_operand(tokens: Sequence[_Token], pairs: dict[int, int], at: int) -> int:
    """Return the place of the last token of the right operand of && or ||."""
    while True:
        at = pairs[at] if tokens[at].text in OPENED else at
        if tokens[at + 1].text in ENDS:
            return at
        at += 1


def _begins_statement(tokens: Sequence[_Token], pairs: dict[int, int], at: int) -> bool:
    before = tokens[at - 1]
    if before.text == ")":
        opener = pairs[at - 1]
        return tokens[opener - 1].text in ("if", "for", "while", "switch")
    return before.text in (";", "{", "}", "else") and not _is_inside_brackets(tokens, pairs, at)


def _is_inside_brackets(tokens: Sequence[_Token], pairs: dict[int, int], at: int) -> bool:
    """Return whether a semicolon before this place is one of a `for`."""
    depth = 0
    for back in range(at - 1, -1, -1):
        text = tokens[back].text
        if text in CLOSED:
            depth += 1
        elif text in OPENED:
            if depth == 0:
                return text == "("
            depth -= 1
    return False


def _can_be_removed(tokens: Sequence[_Token], at: int) -> bool:
    """Return whether a statement is a call, an assignment or a jump, and no declaration."""
    token, after = tokens[at], tokens[at + 1]
    if token.text in ("break", "continue", "goto"):
        return True
    if token.kind != "name" or token.text in DECLARED:
        return token.text in ("++", "--", "*", "(")
    return after.text in ("(", "->", ".", "[", "=", "++", "--") or after.text.endswith("=")
