"""`make test-peers`: what other projects' DLPack tests say about dlbridge.

Each suite runs three times: as it is, with our Tensor as the producer that it tests, and with our
`convert` in the place of its `from_dlpack`. `tests/suites/known.toml` has each failure that was
looked at, with its reason; any other failure, and a listed one that passes, ends it with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from .runner import ALONE, CONSUMER, HERE, PRODUCER, ROOT, Row, Suite, judge, read_known, run_suite
from .table import GPU_SUITES, SUITES

HEADER = ("suite", "version", "dlbridge is", "run", "passed", "failed", "ours", "theirs",
          "by design", "unexpected")  # fmt: skip
PROBE = """
import importlib.metadata, importlib.util, json, sys
package, *needs = sys.argv[1:]
found = {}
for name in needs:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
spec = importlib.util.find_spec(package) if package and None not in found.values() else None
print(json.dumps([found, list(spec.submodule_search_locations)[0] if spec else ""]))
"""


def main() -> int:
    """Run the suites that are there; say what to do to get the others."""
    options = _parser().parse_args()
    suites = GPU_SUITES if options.gpu else SUITES
    if options.list:
        print(*(suite.name for suite in suites))
        return 0
    chosen = [suite for suite in suites if not options.suites or suite.name in options.suites]
    known = read_known(options.known)
    rows: list[Row] = []
    absent, broken = [], []
    for suite in chosen:
        place = find(suite)
        if isinstance(place, str):
            absent.append(f"{suite.name}: {place}")
            continue
        folder, python, version = place
        alone, problem = run_suite(suite, folder, python, ALONE, options.seconds)
        for direction in (PRODUCER, CONSUMER) if not problem else ():
            entries = [k for k in known if (k.suite, k.direction) == (suite.name, direction)]
            results, problem = run_suite(suite, folder, python, direction, options.seconds)
            if problem:
                break
            rows.append(row := Row(suite.name, version, direction))
            judge(row, alone, results, entries)
            print(f"{suite.name}, {direction}: {row.passed} of {row.run} passed", file=sys.stderr)
        if problem:
            broken.append(f"{suite.name}: {problem}")
    _show(rows)
    for title, lines in (("not there", absent), ("could not be run", broken)):
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ")
    return int(bool(broken) or any(row.unexpected for row in rows))


def find(suite: Suite) -> tuple[Path, str, str] | str:
    """Return the suite's folder, interpreter and version, or what is missing."""
    own = ROOT / suite.environment / "bin" / "python"
    python = str(own) if suite.environment != ".venv" else sys.executable
    if not Path(python).exists():
        return f"needs {suite.environment}, which `make {suite.environment}/.ready` creates"
    command = [python, "-c", PROBE, suite.package or "", *suite.needs]
    probe = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    found, installed = json.loads(probe.stdout)
    if missing := [name for name in suite.needs if found[name] is None]:
        return f"needs {' and '.join(missing)}: pip install {' '.join(missing)}"
    version = found[suite.needs[0]] if suite.needs else "its checkout"
    for place in _places(suite, installed):
        if any((place / name).exists() for name in suite.files):
            return place.resolve(), python, version
    folders = f"{_variable(suite)}=<its folder>, or PEERS=<a folder with {suite.name}/>"
    return f"{suite.get}, and set {folders}"


def _places(suite: Suite, installed: str) -> list[Path]:
    places = [os.environ.get(_variable(suite), "")]
    if folder := os.environ.get("PEERS"):
        places.append(str(Path(folder) / suite.name))
    return [Path(place) for place in (*places, installed) if place]


def _variable(suite: Suite) -> str:
    return "PEER_" + suite.name.upper().replace("-", "_")


def _show(rows: list[Row]) -> None:
    print(f"\n| {' | '.join(HEADER)} |\n|---|---|---|{'--:|' * 7}")
    for row in rows:
        sides = [row.count(whose) for whose in ("ours", "theirs", "design")]
        cells = (row.suite, row.version, f"the {row.direction}", row.run, row.passed, row.failed,
                 *sides, len(row.unexpected))  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")
    for row in rows:
        if row.reasons or row.unexpected:
            print(f"\n{row.suite}, dlbridge is the {row.direction}:")
        for (whose, reason), tests in sorted(row.reasons.items()):
            print(f"  {len(tests)} {whose}: {reason}")
        for line in row.unexpected:
            print(f"  UNEXPECTED {line}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make test-peers", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="suite", help=", ".join(s.name for s in SUITES)
    )
    parser.add_argument("--gpu", action="store_true", help="those that need a GPU")
    parser.add_argument("--list", action="store_true", help="print the names of the suites")
    parser.add_argument("--seconds", type=float, default=120, help="how long one test may take")
    parser.add_argument("--known", type=Path, default=HERE / "known.toml", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
