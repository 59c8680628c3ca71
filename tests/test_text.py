"""Text from outside is shown without control characters, wherever it is shown."""

from __future__ import annotations

import pickle
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge.check import inspect
from dlbridge.errors import ArgumentError, ExchangeError, FrameworkMissingError, WireError
from dlbridge.exchange.context import ExchangeContext, make_receipt
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.trace import Crossing
from dlbridge.graph.core.dot import to_dot
from dlbridge.terminal import Column, print_table
from dlbridge.text import escape_controls

# A cursor, a title, DEL, a C1 sequence, an override of the direction, a zero byte.
EVIL = "\x1b[2J\x1b]0;t\x07\x00\x7f\x9b1m\u202egpj\u2066."
SHOWN = r"\x1b[2J\x1b]0;t\x07\x00\x7f\x9b1m\u202egpj\u2066."
PLAIN = EVIL.replace("\0", "")  # for paths
UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
ORDINARY = 'één 世界 — ∑ \U0001f600 a\'b "c" \\d \u00a0\u3000'


def test_control_characters_are_escaped_and_all_others_kept() -> None:
    assert escape_controls(EVIL) == SHOWN
    assert escape_controls(ORDINARY) == ORDINARY
    assert escape_controls("a\n\tb") == r"a\n\tb"
    assert escape_controls("a\n\tb\r", lines=True) == "a\n\tb\\r"
    assert escape_controls(escape_controls(EVIL)) == SHOWN


def test_no_control_character_of_unicode_is_left_out() -> None:
    """By their categories and bidirectional classes, not by our list."""
    bidi = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for code in range(0x110000):
        each = chr(code)
        evil = (
            unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(each) in bidi
            or code in (0x61C, 0x200E, 0x200F, 0xFEFF)
        )
        assert (escape_controls(each) != each) == evil, hex(code)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError(EVIL),
        WireError(EVIL),
        FrameworkMissingError(EVIL),
        ExchangeError("dtype", EVIL),
        InvalidArgumentError(EVIL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_show_no_control_characters(error: Exception) -> None:
    """However they are shown, and after a pickle."""
    for text in (str(error), repr(error), str(error.args), getattr(error, "message", "")):
        assert not UNSAFE.search(text)
    assert SHOWN in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_texts_of_several_lines_stay_so() -> None:
    """As what a compiler says."""
    assert str(ArgumentError("one\n\ttwo é")) == "one\n\ttwo é"


@pytest.mark.parametrize(
    "load",
    [
        lambda: tf.load_graph(b"node { name: 'a' op: '" + EVIL[:3].encode() + b"' }"),
        lambda: tf.load_graph(_graph(op=EVIL)),
        lambda: tf.load_graph(_graph(name=EVIL)),
        lambda: tf.load_graph(_graph(device=EVIL)),
        lambda: tf.load_graph(_graph(input=EVIL)),
        lambda: tf.load_graph(_graph(attr=EVIL)),
        lambda: tf.load_graph(f"/nowhere/{PLAIN}.pb"),
        lambda: dlbridge.load_library(f"/nowhere/{PLAIN}.so"),
        lambda: dlbridge.load_library(EVIL),
        lambda: dlbridge.Schema.parse(EVIL),
        lambda: dlbridge.wrap(print, f"test::{EVIL}(x: f32[n])", abi="python:numpy"),
        lambda: dlbridge.convert(np.ones(1), EVIL),
        lambda: dlbridge.compile_c(f"int f() {{ {PLAIN} }}", "f"),
    ],
)
def test_refusals_show_no_control_characters(load: Any) -> None:
    """Of names in graphs, files, schemas, and of what compilers quote."""
    with pytest.raises(Exception) as caught:
        load()
    assert not UNSAFE.search(str(caught.value))


def _graph(**fields: str) -> tf.GraphDef:
    message = tf.GraphDef()
    node = message.node.add(name=fields.get("name", "a"), op=fields.get("op", "NoOp"))
    node.device = fields.get("device", "")
    if "input" in fields:
        node.input.append(fields["input"])
    if "attr" in fields:
        node.op = "Placeholder"
        node.attr["dtype"].s = fields["attr"].encode()
    return message


# ---- values --------------------------------------------------------------------------------------


def _printed(build: Any, capfd: Any) -> str:
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(build())
    return str(capfd.readouterr().err)


def test_print_shows_no_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither of values nor of the message, whose line feeds stay."""
    text = _printed(lambda: tf.Print(1.0, [EVIL, [EVIL]], message=f"{EVIL}\n"), capfd)
    assert text == f"{SHOWN}\n[{SHOWN}][{SHOWN}]\n"


def test_print_shows_text_as_tensorflow_does(capfd: pytest.CaptureFixture[str]) -> None:
    """Texts that TensorFlow 2.x printed; it writes other controls in octal."""
    data = ["plain words: [1]", "a'b", 'a"b', "a\\b", "é世", "\n\t\r"]
    text = _printed(lambda: tf.Print(1.0, data), capfd)
    assert text == "[plain words: [1]][a\\'b][a\\\"b][a\\\\b][é世][\\n\\t\\r]\n"


def test_failed_checks_show_no_control_characters() -> None:
    """Assert shows its data, CheckNumerics its message."""
    with tf.Graph().as_default(), tf.Session() as session:
        for check in (
            tf.Assert(tf.constant(False), [EVIL, [EVIL]]),
            tf.check_numerics(tf.constant(np.inf), EVIL),
        ):
            with pytest.raises(InvalidArgumentError) as caught:
                session.run(check)
            assert SHOWN in str(caught.value)
            assert not UNSAFE.search(f"{caught.value}{caught.value.message}{caught.value!r}")


def test_an_error_of_a_python_function_shows_no_control_characters() -> None:
    def fail(_: Any) -> Any:
        raise ValueError(EVIL)

    with tf.Graph().as_default(), tf.Session() as session:
        result = tf.py_func(fail, [1.0], tf.float32)
        with pytest.raises(InvalidArgumentError) as caught:
            session.run(result)
    assert not UNSAFE.search(str(caught.value))


# ---- names ---------------------------------------------------------------------------------------


def test_reprs_show_no_control_characters() -> None:
    """Of kernels, schemas and receipts."""

    def double(x: Any) -> Any:
        return x * 2

    double.__name__ = double.__qualname__ = PLAIN
    kernel = dlbridge.wrap(double, abi="python:numpy")
    schema = f"test::evil(x: f32[n], *, m: str = {PLAIN!r})"
    default = dlbridge.wrap(lambda x, **_: None, schema, abi="python:numpy")
    receipt = make_receipt(ExchangeContext(EVIL, EVIL), None)
    for each in (kernel, default, default.schema, receipt):
        assert not UNSAFE.search(f"{each}{each!r}")


def test_drawings_show_no_control_characters() -> None:
    """The reason of a copy may come from a framework's error."""
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
        y = tf.identity(x, name="y")
    crossing = Crossing("torch", False, EVIL, "")
    drawn = to_dot(graph, {y.op: "torch"}, {x: [crossing]})
    assert not UNSAFE.search(drawn)
    assert r"\\x1b[2J" in drawn
    assert r"y\nIdentity" in drawn


def test_tables_show_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rich, and as plain text: notes of `register_framework` are anybody's."""
    print_table([Column("notes", wrap=True)], [[EVIL]])
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    print_table([Column("notes", wrap=True)], [[EVIL]])
    text = capsys.readouterr().out
    assert text.count(r"\x1b[2J") == 2
    assert not UNSAFE.search(text)


def test_inspections_show_no_control_characters() -> None:
    """A producer's exception is shown as it is, otherwise."""

    class Producer:
        def __dlpack_device__(self) -> tuple[int, int]:
            raise RuntimeError(EVIL)

        def __dlpack__(self, **_: Any) -> Any:
            raise RuntimeError(EVIL)

    found = inspect(Producer())
    assert SHOWN in str(found)
    assert not UNSAFE.search(str(found) + found._repr_html_())


def test_every_writer_of_tables_and_errors_uses_the_one_rule() -> None:
    """A second list of characters would differ from the first."""
    package = Path(dlbridge.__file__).parent
    with_lists = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\\x1b|\\x7f|\\u202e", path.read_text())
    ]
    assert with_lists == ["text.py"]
