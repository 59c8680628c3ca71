"""The command `dlbridge`, the demonstration and the tables that they print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlbridge import cli, demo, frameworks, terminal
from dlbridge.errors import ExchangeError
from dlbridge.exchange import adapter

COLUMNS = (
    terminal.Column("name"),
    terminal.Column("what there is to say", wrap=True),
    terminal.Column("ns", right=True),
)
ROWS = [("a", "some words that do not fit on a line", "5"), ("longer", "", "1,234")]


# ---- tables ------------------------------------------------------------------------------------


def test_figures_stand_on_the_right_and_words_on_the_left() -> None:
    assert terminal.render_plain(COLUMNS, ROWS, 80).splitlines() == [
        "name    what there is to say                     ns",
        "------  ------------------------------------  -----",
        "a       some words that do not fit on a line      5",
        "longer                                        1,234",
    ]


def test_a_narrow_terminal_wraps_the_column_that_may_be_wrapped() -> None:
    assert terminal.render_plain(COLUMNS, ROWS, 35).splitlines() == [
        "name    what there is to say     ns",
        "------  --------------------  -----",
        "a       some words that do        5",
        "        not fit on a line",
        "longer                        1,234",
    ]


def test_without_rich_the_table_is_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal.print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.startswith("name    what there is to say")


def test_with_rich_the_words_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    terminal.print_table(COLUMNS, [("a", "shared [by all]", "5")])
    assert "shared [by all]" in capsys.readouterr().out


def test_every_framework_has_its_row() -> None:
    assert [row[0] for row in cli.collect()] == [*frameworks.names(), "mpi4py"]
    assert all(row[-1] for row in cli.collect())


def test_the_table_shows_installed_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frameworks"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"numpy\W+{re.escape(np.__version__)}\W", out)


def test_frameworks_for_programs_have_their_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frameworks", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert [*found] == [*frameworks.names(), "mpi4py"]
    assert found["numpy"]["version"] == np.__version__
    assert not any("`" in str(row) for row in found.values())
    for name, row in found.items():
        is_there = name == "mpi4py" or adapter.is_installed(name)
        assert is_there or row["version"] is None


# ---- commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_names_the_standard(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([argument]) == 0
    assert re.fullmatch(
        r"dlbridge (\d+\.\d+\.\d+|\(not installed\)), DLPack 1\.3\n", capsys.readouterr().out
    )


def test_a_missing_command_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([])
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.fast(lambda rich: rich)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(
    ("command", "rich"), [("frameworks", True), ("frameworks", False), ("--version", False)]
)
def test_output_that_cannot_be_written_is_one_line_and_status_1(command: str, rich: bool) -> None:
    with open("/dev/full", "w") as full:
        done = run_command(command, rich, stdout=full, stderr=subprocess.PIPE)
        _, err = done.communicate(timeout=60)
    assert done.returncode == 1
    assert err == "dlbridge: cannot write the output: No space left on device\n"


@pytest.mark.fast(lambda rich: rich)
@pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
def test_a_reader_that_stops_reading_gets_no_traceback(rich: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run_command("frameworks", rich, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (1, "")


@pytest.mark.full
@pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
def test_a_terminal_without_arrows_gets_their_numbers(rich: bool) -> None:
    """The demonstration prints arrows, which an ASCII locale cannot show."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = run_command("demo", rich, env={**os.environ, "PYTHONIOENCODING": "ascii"}, **streams)
    out, err = done.communicate(timeout=300)
    assert (done.returncode, "\\u2192" in out) == (0, True), err


def test_a_closed_standard_output_is_no_error() -> None:
    """As of a service that is started without one: the exit status is what counts."""
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = ["-c", "from dlbridge.cli import main; raise SystemExit(main(['version']))"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["explain", "inspect", "check", "doctor", "matrix"])
def test_the_help_says_what_the_exit_status_means(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert "The exit status is 1 if" in capsys.readouterr().out


def test_an_exchange_is_explained_and_not_made(
    framework: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    framework("torch")
    flipped = "numpy:zeros((2, 3))[:, ::-1]"
    assert cli.main(["explain", flipped, "--to", "pytorch"]) == 0
    assert "copied by dlbridge (strides)" in capsys.readouterr().out
    assert cli.main(["explain", "numpy:zeros(3)", "--to", "torch", "--json"]) == 0
    receipt = json.loads(capsys.readouterr().out)
    assert (receipt["refused"], receipt["shared"], receipt["target"]) == (False, True, "torch")


def test_a_refusal_is_explained_with_status_1(
    framework: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    framework("torch")
    command = ["explain", "numpy:zeros(3)[::-1]", "--to", "torch", "--policy", "copy=False"]
    assert cli.main(command) == 1
    assert capsys.readouterr().out.endswith("[strides]\n")
    assert cli.main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["why"] == "strides"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["numpy:zeros(3)", "--to", "nump"], "did you mean 'numpy'?"),
        (["numpy:zeros(3)", "--to", "numpy", "--policy", "readonly=shared"], "'share'"),
        (["numpy:zeros(3)", "--to", "numpy", "--policy", "readonly"], "NAME=VALUE"),
        (["numpy", "--to", "numpy"], "MODULE:EXPRESSION is needed, such as 'numpy:zeros(3)'"),
        (["numpy.zeros(3)[::-1]", "--to", "numpy"], "such as 'numpy:zeros(3)[::-1]', got "),
        (["numpy:zeroes(3)", "--to", "numpy"], "numpy has no name 'zeroes'; did you mean 'zeros'?"),
        (["nump:zeros(3)", "--to", "numpy"], "No module named 'nump'"),
    ],
)
def test_a_wrong_call_of_explain_is_one_line_and_status_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dlbridge explain")
    assert text in line


def test_a_module_may_be_named_as_programs_import_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "np:zeros(3)", "--to", "np"]) == 0
    assert "numpy -> numpy: shared" in capsys.readouterr().out


def test_a_misspelt_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["docter"])
    assert capsys.readouterr().err.endswith("did you mean 'doctor'?\n")


def test_errors_about_other_files_are_not_taken_for_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "run", Path("/no/such/file").read_text)
    with pytest.raises(FileNotFoundError):
        cli.main(["demo"])


def test_a_proof_of_a_framework_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["prove", "torch"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("dlbridge: prove: torch is not installed here")
    assert said.endswith("; pip install 'dlbridge[torch]'\n")


def run_command(arguments: str, rich: bool, **streams: Any) -> subprocess.Popen[str]:
    """Start `python -m dlbridge`, with rich or as if it were not installed."""
    code = "import sys; from dlbridge.cli import main; sys.exit(main(sys.argv[1:]))"
    if not rich:
        code = f"import sys; sys.modules['rich.console'] = None; {code}"
    command = [sys.executable, "-c", code, *arguments.split()]
    return subprocess.Popen(command, text=True, **streams)


# ---- the demonstration, hop by hop -------------------------------------------------------------


def test_a_ring_of_one_comes_home(capsys: pytest.CaptureFixture[str]) -> None:
    start = demo.make_tensor()
    value, hops = demo.go_round(start, ["numpy"])
    assert value is start
    assert [(hop.source, hop.target) for hop in hops] == [("numpy", "numpy")]
    assert "1 of 1 hops" in demo.summarise(start, value, hops, unchanged=True)
    assert "CHANGED" in demo.summarise(start, value, hops, unchanged=False)


def test_a_refused_hop_is_shown_and_the_round_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(x: object, to: str, **policies: str) -> object:
        if to == "torch":
            raise ExchangeError("strides", "no")
        return x

    monkeypatch.setattr(demo.native, "convert", refuse)
    monkeypatch.setattr(demo, "receipts", lambda: FakeLog())
    _, hops = demo.go_round(demo.np.ones(3), ["numpy", "torch", "jax"])
    assert [(hop.source, hop.target, hop.refusal) for hop in hops] == [
        ("numpy", "torch", "refused: strides"),
        ("numpy", "jax", ""),
        ("jax", "numpy", ""),
    ]
    assert demo.describe(hops[0])[3] == "refused: strides"


def test_a_framework_that_cannot_be_imported_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(framework: adapter.Framework) -> None:
        if framework.name == "torch":
            raise ExchangeError("consumer", "broken")

    monkeypatch.setattr(adapter, "start", start)
    monkeypatch.setattr(frameworks, "installed", lambda: ["numpy", "torch"])
    assert demo.find_ring() == ["numpy"]
    assert "torch is left out: broken" in capsys.readouterr().out


class FakeLog:
    """A receipt log with one receipt of no interest."""

    def __enter__(self) -> list[object]:
        return [object()]

    def __exit__(self, *_: object) -> None:
        pass


def test_an_interrupt_is_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "show_version", interrupted)
    assert cli.main(["version"]) == 130
    assert capsys.readouterr().err == "dlbridge: interrupted\n"
