"""The words of a schema's text, each with its place; refusals show it."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from dlbridge.errors import ArgumentError, UnsupportedTypeError

_WORD = re.compile(
    r"""\s*(?:
      (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>(?:\d+(?:\.\d+|\.(?!\.))?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<sign>\.\.\.|::|->|//|[()\[\],:=?!|*+-])
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
        before = self.text[: token.start]
        line = self.text[before.rfind("\n") + 1 :].partition("\n")[0]
        column = token.start - before.rfind("\n") - 1
        shown = line.expandtabs(1)
        raise ArgumentError(f"Schema: {why}\n    {shown}\n    {' ' * column}^")
