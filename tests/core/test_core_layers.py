"""The folders of the C core: each uses only folders below it, by includes and by calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

CORE = Path(__file__).resolve().parents[2] / "dlbridge" / "_core"

# From low to high. Files that lie in no folder stand here by their own name.
LAYERS = (
    "core.h",  # the contract, basic types
    "layout",  # arithmetic and checks on a DLTensor
    "memory",  # counted buffers, the copy on the CPU, memory that processes share
    "cuda",  # the driver, streams and memory of CUDA devices
    "python",  # state, refusals, the GIL, NumPy's table, signals
    "tensor",  # the Tensor, managed tensors, capsules
    "torch",  # all that is known of the inside of libtorch
    "kernel",  # schemas, one call of a kernel, the registry
    "peers",  # the frameworks' tensors: a row for each kind of array type
    "exchange",  # from_dlpack, convert
    "mpi",  # MPI's functions, agreement, small tensors
    "engine",  # of the graph alone: programs, loops of ufuncs, sums
    "abi",  # calling conventions
    "xla",  # the handler of XLA's typed FFI
    "tensorflow",  # the op of TensorFlow
    "onnxruntime",  # operators of ONNX Runtime
    "call",  # from Python arguments to a kernel and back
    "torch_op",  # operators of torch's dispatcher
    "module.c",  # the module: it sets the hooks by which low layers reach high ones
)


class Use(NamedTuple):
    """`source` includes `target`, or uses the `name` that it defines."""

    source: Path
    target: Path
    name: str


def test_every_folder_uses_only_folders_below_it():
    ranks = {layer: rank for rank, layer in enumerate(LAYERS)}
    upward = [
        f"{use.source} uses {use.name} of {use.target}"
        for use in find_uses(CORE)
        if ranks[layer_of(use.source)] < ranks[layer_of(use.target)]
    ]
    assert not upward, "\n".join(upward)


def test_every_folder_has_a_row():
    found = {layer_of(path.relative_to(CORE)) for path in source_files(CORE)}
    assert found == set(LAYERS)


def test_the_rows_are_not_met_by_accident():
    """Known uses of one layer by another are found: the parser sees the real tree."""
    uses = {(layer_of(use.source), layer_of(use.target)) for use in find_uses(CORE)}
    known = ["memory", "cuda", "tensor", "peers", "exchange", "abi", "call", "module.c"]
    assert set(pairwise(reversed(known))) <= uses
    assert {("peers", "torch"), ("torch_op", "torch"), ("engine", "python")} <= uses


def test_the_parser_sees_includes_calls_and_data(tmp_path):
    write(
        tmp_path,
        {
            "low/low.h": "int dlb_low(int x);\nextern int dlb_number, dlb_row[];\n",
            "low/low.c": """
                #include "low/low.h"
                int dlb_number;
                int dlb_row[2] = {1, 2};
                static int helper(int x) { return x; }
                int dlb_low(int x) {
                    return helper(x);
                }
                """,
            "high/high.h": '#include "low/low.h"\nvoid *(*dlb_high(int))(void);\n',
            "high/high.c": """
                #include "high/high.h"
                const struct pair dlb_pair = {1, 2};
                static void helper(void) {}
                PyObject *
                dlb_call(int a,
                         int b) {
                    if (dlb_row[a]) { helper(); }
                    return dlb_low(b);
                }
                """,
        },
    )
    assert uses_in(tmp_path) == {
        "low/low.c -> low/low.h: low/low.h",
        *(f"low/low.h -> low/low.c: dlb_{name}" for name in ("low", "number", "row")),
        "high/high.h -> low/low.h: low/low.h",
        "high/high.c -> high/high.h: high/high.h",
        "high/high.c -> low/low.c: dlb_row",
        "high/high.c -> low/low.c: dlb_low",
    }


def test_the_parser_sees_a_call_upward_without_an_include(tmp_path):
    write(
        tmp_path,
        {
            "low/low.c": "int dlb_up(int);\nint dlb_low(void) {\n    return dlb_up(1);\n}\n",
            "low/inline.h": "static inline int f(void) {\n    return dlb_table[0];\n}\n",
            "low/cold.c": "void dlb_x(void) { dlb_cold(0); }\n",
            "high/high.c": """
                int dlb_up(int x) { return x; }
                static int private;
                MACRO(a, b)
                MACRO(c, d)
                __attribute__((cold)) void dlb_cold(int (*each)(int), ...) {}
                int (*const dlb_table[])(void) = {0};
                """,
        },
    )
    assert uses_in(tmp_path) == {
        "low/low.c -> high/high.c: dlb_up",
        "low/inline.h -> high/high.c: dlb_table",
        "low/cold.c -> high/high.c: dlb_cold",
    }


def test_the_parser_reads_no_comments_and_no_strings(tmp_path):
    write(
        tmp_path,
        {
            "low/low.c": """
                /* #include "high/high.h"
                   and dlb_up() */
                // dlb_up()
                const char dlb_text[] = "dlb_up \\" dlb_up", dlb_quote = '"';
                int dlb_low(void) { return '\\''; /* dlb_up(" */ }
                """,
            "high/high.c": 'int dlb_up(int x) { return x; }\n/* " */\nint dlb_other;\n',
            "high/user.c": "int dlb_use(void) { return dlb_quote + dlb_other; }\n",
        },
    )
    assert uses_in(tmp_path) == {
        "high/user.c -> low/low.c: dlb_quote",
        "high/user.c -> high/high.c: dlb_other",
    }


# ---- the parser ----

TOKENS = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL,
)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\b[A-Za-z_]\w*\b")
TYPE = re.compile(r"\b(?:struct|union|enum)\s+\w+|\b_Atomic\s*\([^()]*\)")


def find_uses(core: Path) -> list[Use]:
    """Return what files under `core` use of one another, paths relative to it."""
    texts = {path.relative_to(core): path.read_text() for path in source_files(core)}
    codes = {path: without(text, "comment", "text") for path, text in texts.items()}
    homes = {
        name: path
        for path, code in codes.items()
        if path.suffix == ".c"
        for name in find_definitions(code)
    }
    uses = [
        Use(path, Path(target), target)
        for path, text in texts.items()
        for target in INCLUDE.findall(without(text, "comment"))
        if Path(target) in texts
    ]
    for path, code in codes.items():
        names = {*NAME.findall(code)} & homes.keys()
        uses += [Use(path, homes[name], name) for name in sorted(names) if homes[name] != path]
    return uses


def source_files(core: Path) -> list[Path]:
    files = (path for path in core.rglob("*.[ch]") if path.name != "_cffi.c")
    return sorted(files)


def layer_of(path: Path) -> str:
    return path.parts[0]


def without(text: str, *kinds: str) -> str:
    """Return C source with tokens of these kinds blanked."""
    return TOKENS.sub(lambda token: " " if token.lastgroup in kinds else token[0], text)


def find_definitions(code: str) -> set[str]:
    """Return the external functions and variables that a C file defines."""
    names: set[str] = set()
    for head, has_body in top_level(DIRECTIVE.sub("", code)):
        if not {"static", "extern", "typedef"} & {*NAME.findall(head)}:
            names.update(names_of(TYPE.sub("type", head), has_body))
    return names


def names_of(head: str, has_body: bool) -> list[str]:
    """Return the names that a declaration at file level, its braces emptied, defines."""
    declarator, is_set, _ = head.partition("=")
    outside = outside_parentheses(declarator)
    if re.search(r"\)\s*\(", outside):  # of a function pointer, or a function returning one
        return re.findall(r"\(\s*\*\s*(?:const\s+)?(\w+)", declarator)[:1]
    if "(" in outside and not is_set:
        return re.findall(r"(\w+)\s*\(", outside)[-1:] if has_body else []
    items = [NAME.findall(re.split(r"[=\[]", item)[0]) for item in head.split(",")]
    return [item[-1] for item in items if item] if len(items[0]) > 1 else []


def outside_parentheses(text: str) -> str:
    """Return `int f()` of `int f(int x)`."""
    depth, kept = 0, ""
    for character in text:
        depth -= character == ")"
        kept += character if depth == 0 else ""
        depth += character == "("
    return kept


def top_level(code: str) -> Iterator[tuple[str, bool]]:
    """Yield each declaration with its braces emptied, and whether it ends with a body."""
    head, depth = "", 0
    for piece in re.split(r"([{};])", code):
        if piece == "{":
            depth += 1
        elif piece == "}":
            depth -= 1
            if depth == 0 and "=" not in head and "(" in head:
                yield head, True
                head = ""
        elif depth == 0 and piece == ";":
            yield head, False
            head = ""
        elif depth == 0:
            head += piece


# ---- made-up trees ----


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def uses_in(folder: Path) -> set[str]:
    return {f"{use.source} -> {use.target}: {use.name}" for use in find_uses(folder)}
