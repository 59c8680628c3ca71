"""The command `dlbridge`: arguments and printing only.

dlbridge check        check a producer or a consumer against the rules of DLPack
dlbridge config       print what a compiler needs for dlbridge_kernel.h
dlbridge demo         send a tensor round the ring of installed frameworks and back
dlbridge doctor       show what is installed, what is broken, and known defects with advice
dlbridge explain      say whether an exchange would share or copy, or why it is refused
dlbridge inspect      show what a tensor's capsules and its exchange table say
dlbridge kernels      list the kernels that a library exports, without loading it
dlbridge matrix       exchange tensors between all frameworks and show what arrives
dlbridge new-kernel-library   write a project of kernels: sources, tests, what builds a wheel
dlbridge prove        find out whether the installed torch takes the fastest path
dlbridge frameworks   show how tensors go in and out of each framework, and what to know about it
dlbridge stubs        write what editors and type checkers read of a kernel library
dlbridge version      print the versions of dlbridge and of the DLPack standard it speaks
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge import frameworks, registry
from dlbridge._core import lib
from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError, UnsupportedTypeError
from dlbridge.exchange import adapter
from dlbridge.exchange.protocol import is_capsule
from dlbridge.files import write_file
from dlbridge.terminal import Column, print_table, progress
from dlbridge.text import did_you_mean, escape_controls

if TYPE_CHECKING:
    from dlbridge.check import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the process's) name; return the exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.error("the following arguments are required: COMMAND")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # arrows, where the locale has none
    try:
        status: int = options.run(options)
        if sys.stdout is not None:  # None where it was closed before the start
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # not about the output
            raise
        return give_up(error)
    except KeyboardInterrupt:
        print("dlbridge: interrupted", file=sys.stderr)
        return 130  # as shells say for a signal 2
    return status


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest of the words that an argument may be."""

    def error(self, message: str) -> NoReturn:
        """Print the refusal and leave the process."""
        found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        nearest = did_you_mean(found[1], re.findall(r"[\w-]+", found[2])) if found else ""
        super().error(f"{message}{nearest}")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser, which stores the function of the chosen command as `run`."""
    parser = _Parser(prog="dlbridge", description="Exchange tensors by DLPack.")
    text = "print the versions of dlbridge and of DLPack"
    parser.add_argument(
        "--version", action="store_const", dest="run", const=show_version, help=text
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    status = "1 if something breaks the standard, 2 if there is nothing to inspect, else 0"
    each = add(commands, "inspect", show_inspection, "show what a tensor says by DLPack", status)
    each.add_argument("tensor", metavar="MODULE:EXPRESSION", help=EXPRESSION)
    each.add_argument("--json", action="store_true", help="as JSON")
    add_explain(commands)
    add_check(commands)
    add_libraries(commands)
    status = "1 if something is broken, 2 if a framework that is named is not installed, else 0"
    patient = add(
        commands, "doctor", show_diagnosis, "show what is installed and what is broken", status
    )
    text = f"look at these only, however long it takes; default: all, for {QUICK:g} s"
    patient.add_argument("frameworks", metavar="FRAMEWORK", nargs="*", help=text)
    text = f"seconds for all of them together ({QUICK:g}, or unlimited where some are named)"
    patient.add_argument("--within", type=float, metavar="S", help=text)
    patient.add_argument("--defects", action="store_true", help="list the known defects as well")
    patient.add_argument("--json", action="store_true", help="as JSON")
    add_matrix(commands)
    table = add(commands, "frameworks", show_frameworks, "list the frameworks")
    form = table.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="as a Markdown table")
    form.add_argument("--json", action="store_true", help="as JSON")
    status = "1 if it is not proved, else 0"
    text = "find out whether the installed torch takes the fastest path"
    proved = add(commands, "prove", show_proof, text, status)
    proved.add_argument("framework", choices=["torch"])
    text = "print the versions of dlbridge and of DLPack"
    add(commands, "demo", show_demo, "send a tensor round the installed frameworks and back")
    add(commands, "version", show_version, text)
    return parser


def add_explain(commands: argparse._SubParsersAction[_Parser]) -> None:
    """Add the command `explain`."""
    status = "1 if the exchange is refused, 2 if there is nothing to explain, else 0"
    text = "say whether an exchange would share or copy, or why it is refused"
    plan = add(commands, "explain", show_explanation, text, status)
    plan.add_argument("tensor", metavar="MODULE:EXPRESSION", help=EXPRESSION)
    plan.add_argument("--to", metavar="FRAMEWORK", required=True, help="such as torch or jax")
    plan.add_argument(
        "--policy",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a policy of `convert`, such as copy=False; may be given several times",
    )
    plan.add_argument("--json", action="store_true", help="as JSON")


def add_libraries(commands: argparse._SubParsersAction[_Parser]) -> None:
    """Add the commands for kernel libraries: `config`, `new-kernel-library`, `kernels`, `stubs`."""
    text = "print what a compiler needs for dlbridge_kernel.h"
    settings = add(commands, "config", show_config, text)
    form = settings.add_mutually_exclusive_group(required=True)
    form.add_argument("--cflags", action="store_true", help="its options, for a shared library")
    form.add_argument("--includes", action="store_true", help="those alone that find the header")
    form.add_argument("--cmake", action="store_true", help="the folder, as dlbridge_kernel_DIR")
    text = "write a project of kernels: sources, tests, what builds a wheel"
    status = "2 if it cannot be written, else 0"
    new = add(commands, "new-kernel-library", write_library, text, status)
    new.add_argument("name", metavar="NAME", help="of the package and of its operators")
    new.add_argument("--into", metavar="FOLDER", type=Path, default=Path(), help="default: here")
    text = "list the kernels that a library exports, without loading it"
    status = "1 if it exports none, 2 if it cannot be read or describes one wrongly, else 0"
    exported = add(commands, "kernels", show_kernels, text, status)
    text = "a shared library, or an installed package"
    exported.add_argument("library", metavar="FILE", type=Path, help=text)
    exported.add_argument("--json", action="store_true", help="as JSON")
    text = "write what editors and type checkers read of a kernel library"
    status = "1 if it exports no kernels, 2 if it cannot be read or written, else 0"
    typed = add(commands, "stubs", show_stubs, text, status)
    typed.add_argument(
        "library", metavar="PACKAGE", help="an installed package, or a library's file"
    )
    typed.add_argument(
        "--output", metavar="FILE", help="such as src/mylib/__init__.pyi; else stdout"
    )
    typed.add_argument("--frameworks", metavar="NAMES", help="numpy,torch; default: all")


def add_matrix(commands: argparse._SubParsersAction[_Parser]) -> None:
    """Add the command `matrix`."""
    pairs = add(
        commands,
        "matrix",
        show_matrix,
        "exchange tensors between all frameworks",
        "1 if there is a defect that is not known, 2 if there is nothing to exchange or the page "
        "cannot be written, else 0",
    )
    names = "these only, separated by commas, such as numpy,torch"
    pairs.add_argument("--frameworks", metavar="NAMES", help=names)
    pairs.add_argument("--quick", action="store_true", help="the most telling tensors only")
    pairs.add_argument("--html", metavar="FILE", help="write a page with a heat map")
    pairs.add_argument("--json", action="store_true", help="as JSON")
    pairs.add_argument("--workers", type=int, metavar="N", help="processes; default: the cores")
    pairs.add_argument(
        "--timeout", type=float, default=30, metavar="S", help="seconds for one exchange (30)"
    )
    pairs.add_argument("--no-cache", action="store_true", help="ignore kept results")


def add(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    status: str = "",
) -> argparse.ArgumentParser:
    """Add one command; `status` says what its exit status means."""
    epilog = f"The exit status is {status}." if status else None
    parser = commands.add_parser(name, help=text, description=f"{text}.", epilog=epilog)
    parser.set_defaults(run=run)
    return parser


def add_check(commands: argparse._SubParsersAction[_Parser]) -> None:
    """Add the command `check`."""
    judge = add(
        commands,
        "check",
        show_check,
        "check a producer or consumer by the rules of DLPack",
        "1 if a rule of the severity of --fail-on, or a graver one, is broken, 2 if nothing can be "
        "checked or a file cannot be written, else 0",
    )
    judge.add_argument("factory", metavar="MODULE:FACTORY", nargs="?", help=FACTORY)
    judge.add_argument("--consumer", metavar="MODULE:FUNCTION", help="a from_dlpack to check")
    judge.add_argument("--rules", action="store_true", help="list the rules and check nothing")
    each = "check this rule only; may be given several times"
    judge.add_argument("--only", metavar="RULE", action="append", help=each)
    judge.add_argument("--json", action="store_true", help="print JSON")
    judge.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    judge.add_argument("--html", metavar="FILE", help="write one HTML page")
    judge.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds for one rule (60)"
    )
    judge.add_argument(
        "--fail-on",
        choices=("must", "should", "hazard"),
        default="must",
        help="the least severity of a broken rule for exit status 1 (must)",
    )


def give_up(error: OSError) -> int:
    """Report output that cannot be written, and return the exit status 1.

    A reader that has seen enough (`dlbridge frameworks | head -1`) is no reason for a message. What
    is still in the buffer goes nowhere, so that Python does not fail on it once more at exit.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    if not isinstance(error, BrokenPipeError):
        print(f"dlbridge: cannot write the output: {error.strerror}", file=sys.stderr)
    return 1


# ---- demo and version ---------------------------------------------------------------------------


def show_demo(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Run the demonstration."""
    from dlbridge import demo  # `dlbridge version` must not load what a demo loads

    return demo.run()


def show_proof(options: argparse.Namespace) -> int:
    """Prove the installed version of a framework, which takes a minute."""
    try:
        print(adapter.adapter(options.framework).prove())
    except DLBridgeError as error:
        print(f"dlbridge: {error}", file=sys.stderr)
        return 1
    return 0


def show_version(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Print one line."""
    try:
        own = version("dlbridge")
    except PackageNotFoundError:
        own = "(not installed)"
    print(f"dlbridge {own}, DLPack {lib.DLPACK_MAJOR_VERSION}.{lib.DLPACK_MINOR_VERSION}")
    return 0


# ---- kernel libraries ---------------------------------------------------------------------------

EXPORTED = (
    Column("function"), Column("platform"), Column("schema", wrap=True), Column("more", wrap=True)
)  # fmt: skip


def show_config(options: argparse.Namespace) -> int:
    """Print one line, to be a part of a shell's command."""
    from dlbridge.kernels.library import include_directory

    try:
        folder = include_directory()
    except DLBridgeError as error:
        print(f"dlbridge config: {error}", file=sys.stderr)
        return 1
    includes = f"-I{shlex.quote(str(folder))}"
    print(folder if options.cmake else includes if options.includes else f"{includes} -fPIC")
    return 0


def write_library(options: argparse.Namespace) -> int:
    """Write the project, and say what to do with it."""
    from dlbridge.kernels.project import write_project

    try:
        written = write_project(options.name, options.into)
    except DLBridgeError as error:
        print(escape_controls(f"dlbridge {error}", lines=True), file=sys.stderr)
        return 2
    for path in written:
        print(path)
    folder = shlex.quote(str(options.into / options.name))
    print("\nTo build and test it, with scikit-build-core, cmake and pytest installed:")
    print(f"    cd {folder} && pip install --no-build-isolation . && pytest")
    return 0


def show_kernels(options: argparse.Namespace) -> int:
    """Print the table or JSON; the exit status is 1 if there is no kernel."""
    from dlbridge.kernels.packages import find_library, list_exports

    try:
        path, name = options.library, str(options.library)
        is_package = not path.is_file() and name.replace("-", "_").isidentifier()
        exports = list_exports(find_library(name) if is_package else path)
        exports.sort(key=lambda each: (each.schema.qualified, each.symbol))
    except (DLBridgeError, OSError) as error:
        text = str(error).removeprefix("load_package: ").removeprefix("load_library: ")
        if isinstance(error, OSError):
            text = f"{options.library} cannot be read: {error.strerror}"
        print(escape_controls(f"dlbridge kernels: {text}", lines=True), file=sys.stderr)
        return 2
    if options.json:
        shown = [
            {
                "function": each.symbol,
                "name": each.schema.qualified,
                "schema": str(each.schema),
                "platform": each.platform,
                "abi": each.abi,
                "doc": each.doc,
                **each.options,
            }
            for each in exports
        ]
        print(json.dumps(shown, indent=2))
    elif exports:
        rows = []
        for each in exports:
            abi = {"abi": each.abi} if each.abi != "dltensors" else {}
            more = ", ".join(f"{field}={value}" for field, value in (abi | each.options).items())
            rows.append([each.symbol, each.platform, str(each.schema), more])
        print_table(EXPORTED, rows)
    else:
        text = f"{options.library} exports no kernels with DLB_EXPORT"
        print(escape_controls(f"dlbridge kernels: {text}"), file=sys.stderr)
    return 0 if exports else 1


def show_stubs(options: argparse.Namespace) -> int:
    """Print or write the stub of a library that is not loaded."""
    from dlbridge.frameworks import stubs
    from dlbridge.kernels.packages import find_library, list_exports

    try:
        known = stubs.known_frameworks()
        chosen = options.frameworks.split(",") if options.frameworks else known
        names = [registry.one_of(name, known, "stubs", "has no tensors here") for name in chosen]
        path = Path(options.library)
        exports = list_exports(path if path.is_file() else find_library(options.library))
    except (DLBridgeError, OSError) as error:
        text = str(error).removeprefix("load_package: ").removeprefix("load_library: ")
        text = text.removeprefix("stubs: ")
        print(escape_controls(f"dlbridge stubs: {text}", lines=True), file=sys.stderr)
        return 2
    if not exports:
        text = f"dlbridge stubs: {options.library} exports no kernels with DLB_EXPORT"
        print(escape_controls(text), file=sys.stderr)
        return 1
    written = stubs.write_stub(exports, names)
    if options.output is None:
        print(written, end="")
        return 0
    if not can_write("stubs", options.output):
        return 2
    return 0 if save("stubs", options.output, written) else 2


# ---- inspect ------------------------------------------------------------------------------------

EXPRESSION = (
    "a module to import and an expression in it, such as 'numpy:zeros((2, 3))[:, ::2]'; a function "
    "is called. What is named here runs."
)


def show_inspection(options: argparse.Namespace) -> int:
    """Print the table or JSON; the exit status is 1 if there is a problem."""
    from dlbridge.check import inspect

    try:
        found = inspect(evaluate(options.tensor))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the expression raises)
        text = f"dlbridge inspect: {type(error).__name__}: {error}"
        print(escape_controls(text, lines=True), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_table(INSPECTED, [*found.rows()])
    return 1 if found.all_problems() else 0


def show_explanation(options: argparse.Namespace) -> int:
    """Print the receipt of an exchange that is not made; the exit status is 1 if it is refused."""
    from dlbridge.exchange.exchange import explain

    try:
        policies = dict(map(read_policy, options.policy))
        x = evaluate(options.tensor)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the expression raises)
        text = f"dlbridge explain: {type(error).__name__}: {error}"
        print(escape_controls(text, lines=True), file=sys.stderr)
        return 2
    try:
        receipt = explain(x, options.to, **policies)
    except (ExchangeError, UnsupportedTypeError) as error:
        reason = getattr(error, "reason", None)
        if options.json:
            print(json.dumps({"refused": True, "why": reason, "text": str(error)}, indent=2))
        else:
            print(escape_controls(f"refused: {error}", lines=True))
        return 1
    except DLBridgeError as error:
        print(escape_controls(f"dlbridge {error}", lines=True), file=sys.stderr)
        return 2
    if options.json:
        shown = {name: getattr(receipt, name) for name in EXPLAINED}
        print(json.dumps({"refused": False, **shown}, indent=2))
    else:
        print(receipt)
    return 0


EXPLAINED = ("source", "target", "route", "shared", "copied_by", "why", "nbytes", "shape")


def read_policy(text: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE; None, False and True are Python's.

    Raises:
        ArgumentError: the text has another form.
    """
    name, is_given, value = text.partition("=")
    if not is_given:
        raise ArgumentError(f"--policy: NAME=VALUE is needed, got {text!r}")
    return name, {"None": None, "False": False, "True": True}.get(value, value)


INSPECTED = (Column("part"), Column("field"), Column("value", wrap=True))


def evaluate(text: str) -> object:
    """Return the value of MODULE:EXPRESSION; of a function, what it returns.

    Raises:
        ArgumentError: the text has another form.
    """
    from dlbridge.check.conformance import resolve

    if "" not in sys.path:
        sys.path.insert(0, "")  # as for `python -m`: modules of the current folder
    found: object = resolve(text)
    is_tensor = is_capsule(found) or isinstance(found, type) or hasattr(found, "__dlpack__")
    return found() if callable(found) and not is_tensor else found


# ---- check --------------------------------------------------------------------------------------

FACTORY = (
    "takes a NumPy array and returns a tensor with its values, such as torch:tensor; or takes "
    "nothing. What is named here runs."
)
CHECKED = (Column("outcome"), Column("severity"), Column("rule"), Column("text", wrap=True))


def show_check(options: argparse.Namespace) -> int:
    """Print the table or JSON, and write files; the exit status is 1 if a rule is broken."""
    from dlbridge.check import check_consumer, check_producer, rules
    from dlbridge.check.conformance import write_html, write_junit

    if options.rules:
        return show_rules(options)
    sides = (("producer", options.factory), ("consumer", options.consumer))
    peers = {side: name for side, name in sides if name is not None}
    if not peers:
        print("dlbridge check: MODULE:FACTORY or --consumer is needed", file=sys.stderr)
        return 2
    known = {each.id for each in rules() if each.id.partition(".")[0] in peers}
    unknown = set(options.only or ()) - known
    if unknown:
        names = escape_controls(", ".join(sorted(unknown)))
        text = f"a {' or '.join(peers)} has no rules {names}; see dlbridge check --rules"
        print(f"dlbridge check: {text}", file=sys.stderr)
        return 2
    if not can_write("check", options.junit, options.html):
        return 2
    try:
        reports = []
        for side, name in peers.items():
            check = check_producer if side == "producer" else check_consumer
            only = options.only and [each for each in options.only if each.startswith(f"{side}.")]
            shown = escape_controls(f"Checking the {side} {name} …")
            print(shown, file=sys.stderr, flush=True)
            with progress(f"rules for the {side}") as advance:
                report = check(name, only=only, timeout=options.timeout, progress=advance)
            reports.append(report)
    except ArgumentError as error:
        print(escape_controls(f"dlbridge check: {error}", lines=True), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([each.to_dict() for each in reports], indent=2))
    else:
        print_reports(reports)
    for write, file in ((write_junit, options.junit), (write_html, options.html)):
        if file and not attempt("check", file, partial(write, reports, file)):
            return 2
    return 1 if any(each.fails(options.fail_on) for each in reports) else 0


def print_reports(reports: Sequence[Report]) -> None:
    """Print what is broken, if anything is, and below it the verdicts."""
    broken = [row for each in reports for row in each.rows() if row[0]]
    if broken:
        print_table(CHECKED, broken)
    for each in reports:
        print(escape_controls(each.summary(), lines=True))


def show_rules(options: argparse.Namespace) -> int:
    """Print the catalogue."""
    from dlbridge.check import rules

    if options.json:
        known = [
            {"rule": r.id, "severity": r.severity, "clause": r.clause, "reason": r.reason}
            for r in rules()
        ]
        print(json.dumps(known, indent=2))
    else:
        print_table(CATALOGUE, [(r.severity, r.id, r.reason) for r in rules()])
    return 0


CATALOGUE = (Column("severity"), Column("rule"), Column("what it demands", wrap=True))


def can_write(command: str, *files: str | None) -> bool:
    """Return whether files can be written, before the work whose results they will hold."""
    for file in files:
        if file is None:
            continue
        try:
            why = _why_not_written(file)
        except OSError as error:
            why = str(error.strerror).lower()
        if why:
            text = escape_controls(f"dlbridge {command}: cannot write {file}: {why}")
            print(text, file=sys.stderr)
            return False
    return True


def _why_not_written(file: str) -> str:
    path = Path(file)
    is_device = path.exists() and not path.is_file()  # any other file is replaced in its folder
    if not file:
        return "its name is empty"
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    is_open = os.access(path if is_device else path.parent, os.W_OK)
    return "" if is_open else "permission denied"


def save(command: str, file: str, text: str) -> bool:
    """Write a file, and return whether it could be written."""
    return attempt(command, file, partial(write_file, file, [text.encode()]))


def attempt(command: str, file: str, write: Callable[[], object]) -> bool:
    """Return whether a file could be written by this function, and say why not."""
    try:
        write()
    except OSError as error:
        text = f"dlbridge {command}: cannot write {file}: {str(error.strerror).lower()}"
        print(escape_controls(text), file=sys.stderr)
        return False
    return True


# ---- doctor -------------------------------------------------------------------------------------


QUICK = 8.0  # seconds for all frameworks together, where none is named


def show_diagnosis(options: argparse.Namespace) -> int:
    """Print the table or JSON; the exit status is 1 if something is broken."""
    from dlbridge.check import doctor

    chosen = options.frameworks or None
    within = QUICK if options.within is None and chosen is None else options.within
    names = ", ".join(chosen or frameworks.installed())
    limit = "" if within is None else f", for at most {within:g} s"
    print(f"Importing {names}, each in a process of its own{limit} …", file=sys.stderr, flush=True)
    try:
        with progress("processes have ended") as advance:
            found = doctor(chosen, within=within, progress=advance)
    except ArgumentError as error:
        print(escape_controls(f"dlbridge {error}", lines=True), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        rows = [row for row in found.rows() if options.defects or row[0] != "known defect"]
        print_table(DIAGNOSED, rows)
        print(found.summary())
    return 1 if found.is_broken else 0


DIAGNOSED = (Column("part"), Column("subject"), Column("text", wrap=True))


# ---- matrix -------------------------------------------------------------------------------------


def show_matrix(options: argparse.Namespace) -> int:
    """Print the tables or JSON; the exit status is 1 if there is a defect that is not known."""
    from dlbridge.check import heatmap, matrix

    names = None if options.frameworks is None else options.frameworks.split(",")
    if not can_write("matrix", options.html):
        return 2
    hint = "" if options.quick else "; --quick takes the most telling tensors only"
    said = f"Exchanging tensors between all frameworks: this may take minutes{hint} …"
    print(said, file=sys.stderr, flush=True)
    try:
        with progress("exchanges") as advance:
            found = matrix(
                names,
                quick=options.quick,
                workers=options.workers,
                timeout=options.timeout,
                cache=not options.no_cache,
                progress=advance,
            )
    except ArgumentError as error:
        print(f"dlbridge {error}", file=sys.stderr)
        return 2
    if options.html is not None and not save("matrix", options.html, heatmap.render(found)):
        return 2
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
        return 1 if found.is_broken else 0
    print_table(PAIRS, [*found.rows()])
    findings = [*found.findings()]
    if findings:
        print_table(FINDINGS, findings)
    return 1 if found.is_broken else 0


PAIRS = (
    Column("from"),
    Column("to"),
    Column("own functions", wrap=True),
    Column("through dlbridge", wrap=True),
)
FINDINGS = (
    Column("what"),
    Column("exchange"),
    Column("cells", right=True),
    Column("text", wrap=True),
)


# ---- frameworks ---------------------------------------------------------------------------------

# mpi4py has no tensors of its own: its calls take a Tensor, and through it what others made.
BUFFERS = (
    "mpi4py",
    "",
    "`__dlpack__` of a Tensor",
    "out",
    "takes a Tensor in any call, also of JAX",
)

COLUMNS = (
    Column("framework"),
    Column("installed"),
    Column("in"),
    Column("out"),
    Column("path", wrap=True),
    Column("zero-copy", wrap=True),
    Column("notes", wrap=True),
)


def show_frameworks(options: argparse.Namespace) -> int:
    """Print the table, with the versions that are installed here or as Markdown."""
    if options.markdown:
        print(render_markdown())
        return 0
    providers = packages_distributions()
    if options.json:
        print(json.dumps([*describe(providers)], indent=2))
        return 0
    rows = []
    for name, way_in, way_out, *cells in collect():
        plain = [cell.replace("`", "") for cell in (way_in, way_out, find_path(name), *cells)]
        rows.append([name, find_version(name, providers), *plain])
    print_table(COLUMNS, rows)
    return 0


def describe(providers: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Yield one dict for each framework; `version` and `path` are None where there is none."""
    for name, way_in, way_out, zero_copy, notes in collect():
        found = find_version(name, providers)
        yield {
            "name": name,
            "version": None if found == "-" else found,
            "in": way_in.replace("`", ""),
            "out": way_out.replace("`", ""),
            "path": find_path(name) or None,
            "zero_copy": zero_copy,
            "notes": notes.replace("`", ""),
        }


def collect() -> list[tuple[str, ...]]:
    """Return name, way in, way out, zero-copy and notes of each framework."""
    known = map(adapter.adapter, frameworks.names())
    return [*((f.name, f.way_in, f.way_out, f.zero_copy, f.notes) for f in known), BUFFERS]


def render_markdown() -> str:
    """Return the table for the README; it is the same whatever is installed."""
    header = ("framework", "in", "out", "zero-copy", "notes")
    rows = [header, tuple("---" for _ in header), *collect()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def find_version(name: str, providers: Mapping[str, list[str]]) -> str:
    """Return the version of what provides the framework, without importing it; "-" for none."""
    from dlbridge.check import diagnosis  # `dlbridge version` must not load what it loads

    module = "mpi4py" if name == BUFFERS[0] else adapter.adapter(name).module
    return diagnosis.find_version(module, providers) or "-"


def find_path(name: str) -> str:
    """Return which path the tensors of an installed framework take, "" where there is only one."""
    if name == BUFFERS[0] or not adapter.is_installed(name):
        return ""
    return adapter.adapter(name).path()
