"""Run a benchmark: `python -m benchmarks bridge|cuda|distributed|... [--quick]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    bridge,
    cuda,
    distributed,
    distributed_pages,
    exchange,
    graph,
    kernels,
    matrix,
    ordinary,
    stream,
    versions,
)
from dlbridge.files import write_file

BENCHMARKS: dict[str, Callable[..., dict[str, Any]]] = {
    "bridge": bridge.run,
    "cuda": cuda.run,
    "distributed": distributed.run,
    "exchange": exchange.run,
    "graph": graph.run,
    "kernels": kernels.run,
    "matrix": matrix.run,
    "ordinary": ordinary.run,
    "stream": stream.run,
    "versions": versions.run,
}
PAGES = {
    "bridge": bridge.write_pages,
    "distributed": distributed_pages.write_pages,
    "matrix": matrix.write_pages,
    "versions": versions.write_pages,
}


def main() -> None:
    """Parse the arguments, run, print; write JSON where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("python", nargs="*", type=Path, help="versions: in which environments")
    parser.add_argument(
        "--unproved", action="store_true", help="versions: also as if torch had no proof"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="matrix: draw the heat map")
    parser.add_argument("--pages", action="store_true", help="renew the tables in docs/")
    arguments = parser.parse_args()
    for path in filter(None, (arguments.json, arguments.svg)):
        path.parent.mkdir(parents=True, exist_ok=True)
    of_versions = {"pythons": arguments.python, "unproved": arguments.unproved}
    if arguments.benchmark != "versions":
        if any(of_versions.values()):
            parser.error("PYTHON and --unproved: only for versions")
        of_versions = {}
    figures = BENCHMARKS[arguments.benchmark](quick=arguments.quick, **of_versions)
    if arguments.json:
        write_file(arguments.json, [f"{json.dumps(figures, indent=1)}\n".encode()])
    if arguments.svg and "cells" not in figures:
        parser.error("--svg: only for the matrix")
    if arguments.pages and arguments.benchmark not in PAGES:
        parser.error(f"--pages: only for {', '.join(PAGES)}")
    if arguments.pages:
        PAGES[arguments.benchmark](figures, Path(__file__).parent.parent)
    if arguments.svg:
        write_file(arguments.svg, [matrix.draw(figures["cells"]).encode()])


if __name__ == "__main__":
    main()
