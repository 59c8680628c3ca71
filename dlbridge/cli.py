"""The command `dlbridge`: arguments and printing only.

dlbridge demo         send a tensor round the ring of installed frameworks and back
dlbridge frameworks   show what goes in and out of each framework, and what to know about it
dlbridge version      print the versions of dlbridge and of the DLPack standard it speaks
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the process's) name; return the exit status."""
    parser = argparse.ArgumentParser(prog="dlbridge", description="Exchange tensors by DLPack.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add(commands, "demo", show_demo, "send a tensor round the installed frameworks and back")
    frameworks = add(commands, "frameworks", show_frameworks, "list the frameworks")
    frameworks.add_argument("--markdown", action="store_true", help="as a Markdown table")
    add(commands, "version", show_version, "print the versions of dlbridge and of DLPack")
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    """Add one command."""
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


# Each command imports what it needs: `dlbridge version` must not load what a demo loads.


def show_demo(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Run the demonstration."""
    from dlbridge import demo

    return demo.run()


def show_frameworks(options: argparse.Namespace) -> int:
    """Print the table of frameworks."""
    from dlbridge import summary

    if options.markdown:
        print(summary.render_markdown())
    else:
        summary.show()
    return 0


def show_version(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Print one line."""
    from importlib.metadata import PackageNotFoundError, version

    from dlbridge._core import lib

    try:
        own = version("dlbridge")
    except PackageNotFoundError:
        own = "(not installed)"
    print(f"dlbridge {own}, DLPack {lib.DLPACK_MAJOR_VERSION}.{lib.DLPACK_MINOR_VERSION}")
    return 0
