"""Libraries that export their kernels with DLB_EXPORT: the header, the table, `load_library`."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, KernelError

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wmissing-declarations", "-Werror")

# `scale` with its gradient. The functions are static: only the descriptions are to be found.
SCALE = """
#include "dlbridge_kernel.h"

static int times(void *context, const DLTensor *x, DLTensor *out) {
    double by = dlb_get_float(context, 0);
    for (int64_t i = 0; i < x->shape[0]; i++)
        ((double *)out->data)[i] = by * ((const double *)x->data)[i];
    return 0;
}

static int scale(void *context, DLTensor *arguments, int count) {
    return count == 2 ? times(context, &arguments[0], &arguments[1]) : -1;
}

static int scale_vjp(void *context, DLTensor *arguments, int count) {
    return count == 2 ? times(context, &arguments[0], &arguments[1]) : -1;
}

DLB_EXPORT(scale, "NAMESPACE::scale(x: f64[n], *, by: float = 2.0) -> f64[n]",
           .vjp = "scale_vjp", .jvp = "scale_jvp", .gil = "release",
           .doc = "Return by * x, of each element.");
DLB_EXPORT(scale_vjp, "NAMESPACE::scale_vjp(grad: f64[n], *, by: float) -> f64[n]");

static int scale_jvp(void *context, DLTensor *arguments, int count) {
    return count == 2 ? times(context, &arguments[0], &arguments[1]) : -1;
}

DLB_EXPORT(scale_jvp, "NAMESPACE::scale_jvp(tangent_x: f64[n], *, by: float) -> f64[n]");
"""

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return `build(*texts, language=, name=, flags=)`: the path of a library of these texts."""

    def make(
        *texts: str, language: str = "c", name: str = "libmine.so", flags: tuple[str, ...] = ()
    ) -> Path:
        compiler = {"c": "cc", "c++": "c++"}[language]
        if shutil.which(compiler) is None:
            pytest.skip(f"there is no {compiler} here")
        standard = () if any("-std" in flag for flag in flags) else ("-std=c11",)
        standard = standard if language == "c" else ()
        sources = []
        for place, text in enumerate(texts):
            sources.append(tmp_path / f"source_{name}_{place}.{'c' if language == 'c' else 'cpp'}")
            sources[-1].write_text(text)
        target = tmp_path / name
        target.unlink(missing_ok=True)
        command = [compiler, *standard, *STRICT, f"-I{INCLUDE}", "-shared", "-fPIC", *flags]
        done = subprocess.run(
            [*command, "-o", target, *sources], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return target

    return make


def entry(symbol: str, schema: str, more: str = "", *, body: str = "return 0;") -> str:
    """Return C of one function that is exported."""
    return (
        f"static int {symbol}(void *context, DLTensor *arguments, int count)"
        f" {{ (void)context; (void)arguments; (void)count; {body} }}\n"
        f'DLB_EXPORT({symbol}, "{schema}"{more and ", "}{more});\n'
    )


HEADER = '#include "dlbridge_kernel.h"\n'


# ---- what a library gives ------------------------------------------------------------------------


def test_a_library_gives_its_kernels(build: Build) -> None:
    """As attributes, by whole names, in `dir`, the text of it, and in every docstring."""
    path = build(SCALE.replace("NAMESPACE", "gives"))
    library = dlbridge.load_library(path)
    assert isinstance(library.scale, dlbridge.Kernel)
    assert [*library.kernels] == ["gives::scale", "gives::scale_vjp", "gives::scale_jvp"]
    assert library.kernels["gives::scale"] is library.scale
    assert {"scale", "scale_vjp", "wrap", "path"} <= {*dir(library)}
    kernels = "gives::scale, gives::scale_vjp, gives::scale_jvp"
    assert repr(library) == f"Library({str(path)!r}: {kernels})"
    assert "gives::scale(x: f64[n], *, by: float = 2.0) -> f64[n]" in str(library.__doc__)
    assert str(library.scale.__doc__).startswith("Return by * x, of each element.\n\ngives::scale(")
    assert library.scale.vjp is library.scale_vjp
    assert library.scale.jvp is library.scale_jvp
    assert library.scale.gil == "release"
    np.testing.assert_array_equal(library.scale(np.arange(3.0), by=4.0), [0.0, 4.0, 8.0])


def test_a_kernel_of_a_library_is_an_operator_of_torch(build: Build) -> None:
    """Also by its name in `torch.ops`, differentiated both ways and compiled whole."""
    torch = pytest.importorskip("torch")
    library = dlbridge.load_library(build(SCALE.replace("NAMESPACE", "of_torch")))
    x = torch.arange(3.0, dtype=torch.float64, requires_grad=True)
    library.scale(x, by=5.0).sum().backward()
    assert x.grad.tolist() == [5.0, 5.0, 5.0]
    assert torch.ops.of_torch.scale(x.detach()).tolist() == [0.0, 2.0, 4.0]
    assert torch.autograd.gradcheck(library.scale.torch, (x,), check_forward_ad=True)
    compiled = torch.compile(
        lambda x: library.scale(x, by=3.0) + 1, fullgraph=True, backend="eager"
    )
    assert compiled(x.detach()).tolist() == [1.0, 4.0, 7.0]


def test_a_kernel_of_a_library_is_a_function_of_jax(build: Build) -> None:
    """Compiled, with its gradient and its tangent."""
    jax = pytest.importorskip("jax")
    library = dlbridge.load_library(build(SCALE.replace("NAMESPACE", "of_jax")))
    with pytest.importorskip("dlbridge.testing.jax_checks").working():
        x = jax.numpy.arange(3.0)
        loss = jax.jit(lambda x: library.scale.jax(x, by=5.0).sum())
        assert jax.grad(loss)(x).tolist() == [5.0, 5.0, 5.0]


def test_a_kernel_of_a_library_is_a_function_of_tensorflow(build: Build) -> None:
    """Inside tf.function, with its gradient."""
    tf = pytest.importorskip("tensorflow")
    library = dlbridge.load_library(build(SCALE.replace("NAMESPACE", "of_tensorflow")))
    x = tf.constant([1.0, 2.0], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(library.scale.tensorflow)(x, by=3.0)
    assert y.numpy().tolist() == [3.0, 6.0]
    assert tape.gradient(y, x).numpy().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("language", ["c", "c++"])
def test_every_field_arrives(build: Build, language: str) -> None:
    """As the option of `wrap` that is called so."""
    more = (
        '.abi = "void(const float *x, float *out, int64_t n)", .batch = "broadcast", '
        '.layout = "strided", .overlap = "allow", .gil = "auto", .cost = "3 * n", '
        '.stream = "default", .platform = "cpu", .align = 64, .doc = "Copies.", '
        '.autocast = "float32", .sharding = "n", .version = 3, .vjp = "copy_vjp"'
    )
    source = f"""{HEADER}
    static void copy(const float *x, float *out, int64_t n) {{
        for (int64_t i = 0; i < n; i++) out[i] = x[i];
    }}
    DLB_EXPORT(copy, "fields::copy(x: f32[n]) -> f32[n]", {more});
    {entry("copy_vjp", "fields::copy_vjp(grad: f32[n]) -> f32[n]")}
    """
    flags = ("-std=c++17",) if language == "c++" else ()
    kernel = dlbridge.load_library(build(source, language=language, flags=flags)).copy
    options = (
        *("batch", "layout", "overlap", "gil", "cost"),
        *("stream", "align", "autocast", "sharding", "version"),
    )
    given = ("broadcast", "strided", "allow", "auto", "3 * n", "default", 64, "float32", ("n",), 3)
    assert tuple(getattr(kernel, option) for option in options) == given
    assert kernel.platforms == ("cpu",)
    assert "-> f32[n], version 3: " in repr(kernel)
    assert (kernel.vjp.name, kernel.vjp.version) == ("fields::copy_vjp", 1)
    x = np.arange(3, dtype="float32")
    np.testing.assert_array_equal(kernel(x), x)


def test_one_operator_may_have_a_function_for_each_platform(build: Build) -> None:
    """Options are said by any of them; a vjp is named by any of its functions."""
    forward, backward = "both::f(x: f32[n]) -> f32[n]", "both::g(grad: f32[n]) -> f32[n]"
    source = (
        HEADER
        + entry("f_cpu", forward, '.vjp = "g_cpu"')
        + entry("f_cuda", forward, '.platform = "cuda", .vjp = "g_cuda", .gil = "hold"')
        + entry("g_cpu", backward)
        + entry("g_cuda", backward, '.platform = "cuda"')
    )
    library = dlbridge.load_library(build(source))
    assert [*library.kernels] == ["both::f", "both::g"]
    assert library.f.platforms == ("cpu", "cuda")
    assert library.f.vjp is library.g
    assert library.f.gil == "hold"


def test_names_that_are_taken_or_alike_are_found_whole(build: Build) -> None:
    """In `kernels`; the attribute says so."""
    schema = "{}(x!: f32[n])"
    texts = [entry(f"f{i}", schema.format(name)) for i, name in enumerate(("one::f", "two::f"))]
    source = HEADER + "".join(texts) + entry("wrapped", schema.format("one::wrap"))
    library = dlbridge.load_library(build(source))
    assert [*library.kernels] == ["one::f", "two::f", "one::wrap"]
    assert callable(library.wrap)
    assert library.wrap is not library.kernels["one::wrap"]
    with pytest.raises(AttributeError, match=r"has one::f and two::f; take one from \.kernels"):
        library.f
    assert "f" not in dir(library)


def test_symbols_are_found_beside_kernels(build: Build) -> None:
    """As items always, as attributes where no kernel is called so."""
    source = f"{HEADER}int plain(void);\nint plain(void) {{ return 7; }}\n" + entry(
        "f", "beside::f(x!: f32[n])"
    )
    library = dlbridge.load_library(build(source))
    assert library.plain() == library["plain"]() == 7
    with pytest.raises(AttributeError, match=r"has no kernel and no symbol 'ff'; did you mean 'f'"):
        library.ff


def test_a_library_without_kernels_says_so(build: Build) -> None:
    """One that never saw the header, and one that exports nothing with it."""
    plain = build("int f(void);\nint f(void) { return 3; }\n", name="libplain.so")
    empty = build(f"{HEADER}int f(void);\nint f(void) {{ return 3; }}\n", name="libempty.so")
    for path in (plain, empty):
        library = dlbridge.load_library(path)
        assert library.f() == 3
        assert dict(library.kernels) == {}
        assert repr(library) == f"Library({str(path)!r})"
        with pytest.raises(AttributeError, match="nothing is exported with DLB_EXPORT"):
            library.g


# ---- compilers and linkers -----------------------------------------------------------------------


@pytest.mark.parametrize("standard", ["c11", "gnu11", "c17", "c2x"])
def test_the_header_is_clean_c(build: Build, standard: str) -> None:
    """With every warning an error."""
    path = build(SCALE.replace("NAMESPACE", f"clean_{standard}"), flags=(f"-std={standard}",))
    assert dlbridge.load_library(path).scale(np.ones(1)).tolist() == [2.0]


@pytest.mark.parametrize("standard", ["c++17", "gnu++17", "c++20", "c++2b"])
def test_the_header_is_clean_cpp(build: Build, standard: str) -> None:
    """In C++, where fields may have another order, and functions a namespace and noexcept."""
    source = f"""{HEADER}
    namespace mine {{ namespace {{
    int half(void *context, DLTensor *arguments, int) noexcept {{
        return dlb_guard(context, [&] {{
            for (int64_t i = 0; i < arguments[0].shape[0]; i++)
                static_cast<float *>(arguments[1].data)[i] =
                    static_cast<const float *>(arguments[0].data)[i] / 2;
            return 0;
        }});
    }}
    DLB_EXPORT(half, "clean::half(x: f32[n]) -> f32[n]", .platform = "cpu", .doc = "One, two.",
               .align = 8, .stream = "current", .cost = "n", .gil = "auto", .overlap = "forbid",
               .layout = "contiguous", .batch = "sequential", .jvp = nullptr, .vjp = "half_vjp",
               .abi = "dltensors", .autocast = "float32", .sharding = "n", .version = 2);
    int half_vjp(void *context, DLTensor *arguments, int count) noexcept {{
        return half(context, arguments, count);
    }}
    DLB_EXPORT(half_vjp, "clean::half_vjp(grad: f32[n]) -> f32[n]");
    }} }}
    """
    path = build(source, language="c++", flags=(f"-std={standard}",))
    library = dlbridge.load_library(path)
    assert library.half(np.ones(2, "f4")).tolist() == [0.5, 0.5]
    assert library.half.vjp is library.half_vjp
    assert library.half.version == 2


@pytest.mark.parametrize(
    "function",
    [
        "constexpr auto f = twice<2>;",
        "constexpr auto f = [](void *, DLTensor *, int) { return 0; };",
    ],
)
def test_what_is_no_function_is_not_exported(build: Build, function: str) -> None:
    """A pointer or a lambda is data: a call of its address would end the process."""
    source = f"""{HEADER}
    template <int N> static int twice(void *, DLTensor *, int) {{ return N - N; }}
    static {function}
    DLB_EXPORT(f, "no_function::f(x: f32[n]) -> f32[n]");
    """
    with pytest.raises(AssertionError, match="DLB_EXPORT takes a function; of a pointer to one"):
        build(source, language="c++", flags=("-std=c++17",))


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-fvisibility=hidden", "-O2"),
        ("-Wl,--gc-sections", "-ffunction-sections", "-fdata-sections", "-fvisibility=hidden"),
        ("-flto", "-O2"),
        ("-O0", "-g", "-fsanitize-recover=undefined"),
    ],
    ids=["plain", "hidden", "collected", "lto", "debug"],
)
def test_the_kernels_of_all_files_of_a_library_are_found(
    build: Build, flags: tuple[str, ...]
) -> None:
    """Also of one that only includes the header."""
    texts = [HEADER + entry(f"f{i}", f"files::f{i}(x!: f32[n])") for i in range(3)]
    library = dlbridge.load_library(build(*texts, HEADER, flags=flags))
    assert sorted(library.kernels) == ["files::f0", "files::f1", "files::f2"]


def test_two_exports_of_one_name_do_not_link(build: Build) -> None:
    """The linker names them."""
    text = HEADER + entry("f", "twice::f(x!: f32[n])")
    with pytest.raises(AssertionError, match="multiple definition of `dlb_export_f'"):
        build(text, text)


def test_the_table_of_a_library_that_is_needed_is_not_taken(build: Build, tmp_path: Path) -> None:
    """The symbol would be found in it."""
    build(HEADER + entry("f", "needed::f(x!: f32[n])"), name="libneeded.so")
    source = "int g(void);\nint g(void) { return 1; }\n"
    flags = (f"-L{tmp_path}", "-Wl,--no-as-needed", "-lneeded", f"-Wl,-rpath,{tmp_path}")
    outer = tmp_path / "outer.c"
    outer.write_text(source)
    target = tmp_path / "libouter.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, outer, *flags], check=True)
    library = dlbridge.load_library(target)
    assert dict(library.kernels) == {}
    assert library.g() == 1


def test_a_library_in_the_global_scope_does_not_lend_its_table(
    build: Build, run_python: Callable[..., Any]
) -> None:
    """Every table, and every entry, has the same name in each library."""
    first = build(SCALE.replace("NAMESPACE", "global_first"), name="libfirst.so")
    second = build(SCALE.replace("NAMESPACE", "global_second"), name="libsecond.so")
    code = """
        import ctypes, sys
        ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
        import dlbridge
        second = dlbridge.load_library(sys.argv[2])
        first = dlbridge.load_library(sys.argv[1])
        assert first.scale.name == "global_first::scale", first
        assert second.scale.name == "global_second::scale", second
        assert {*map(len, (first.kernels, second.kernels))} == {3}
    """
    run_python(code, first, second).check()


def test_a_table_of_version_1_loads(tmp_path: Path) -> None:
    """As it was compiled when there was no other, with less in it and with all."""
    if shutil.which("cc") is None:
        pytest.skip("there is no cc here")
    target = tmp_path / "libold.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, HERE / "library_table_1.c"], check=True)
    library = dlbridge.load_library(target)
    assert library.triple(np.ones(2, "f4")).tolist() == [3.0, 3.0]
    assert library.negate(np.ones(2)).tolist() == [-1.0, -1.0]
    assert (library.triple.align, library.triple.version) == (None, 1)
    assert (library.negate.cost, library.negate.align) == ("2 * n", 16)
    assert library.negate.version == 1
    assert str(library.negate.__doc__).startswith("Return -x.\n")


def test_python_reads_the_layout_that_c_writes(build: Build) -> None:
    """Field by field."""
    exports = importlib.import_module("dlbridge.kernels.exports")
    for name, kind in (("dlb_export", exports._Description), ("dlb_library", exports._Table)):
        fields = [field[0] for field in kind._fields_]
        offsets = ", ".join(f"offsetof({name}, {field})" for field in fields)
        texts = f"{HEADER}extern const size_t found[];\n"
        texts += f"const size_t found[] = {{{offsets}, sizeof({name})}};\n"
        library = dlbridge.load_library(build(texts, name=f"lib{name}.so"))
        ctypes = importlib.import_module("ctypes")
        found = (ctypes.c_size_t * (len(fields) + 1)).in_dll(library._library, "found")
        expected = [getattr(kind, field).offset for field in fields]
        assert [*found] == [*expected, ctypes.sizeof(kind)]


# ---- mistakes ------------------------------------------------------------------------------------

GOOD = entry("good", "MISTAKE::good(x!: f32[n])")
F = "MISTAKE::f(x: f32[n]) -> f32[n]"
MISTAKES = {
    "schema": (
        entry("f", "MISTAKE::f(x: f33[n]) -> f32[n]"),
        r"f: unknown dtype 'f33'.*\n    mistake_\w+::f\(x: f33\[n\]\) -> f32\[n\]\n +\^",
    ),
    "no schema": (entry("f", ""), "f: it has no schema"),
    "unknown vjp": (entry("f", F, '.vjp = "goood"'), r"f: \.vjp is 'goood'.*did you mean 'good'"),
    "unknown jvp": (entry("f", F, '.jvp = "x"'), r"f: \.jvp is 'x', which the library does not"),
    "vjp that does not fit": (
        entry("f", F, '.vjp = "g"') + entry("g", "MISTAKE::g(other: f32[n]) -> f32[n]"),
        r"f: mistake_\w+::f: its vjp asks for 'other'",
    ),
    "vjp of itself": (
        entry("f", F, '.vjp = "g"')
        + entry("g", "MISTAKE::g(grad: f32[n]) -> f32[n]", '.vjp = "f"'),
        r"f: it would be its own derivative: mistake_\w+::f -> mistake_\w+::g -> mistake_\w+::f",
    ),
    "duplicate": (entry("f", F) + entry("g", F), "g: .* has a function for cpu already, f"),
    "other schema for cuda": (
        entry("f", F) + entry("g", "MISTAKE::f(x: f64[n]) -> f64[n]", '.platform = "cuda"'),
        r"g: its schema is\n.*f64.*\n.*f, the same operator for cpu",
    ),
    "options that differ": (
        entry("f", F, '.gil = "hold"') + entry("g", F, '.platform = "cuda", .gil = "release"'),
        r"g: \.gil is 'release', and of f, the same operator, 'hold'",
    ),
    "option": (
        entry("f", F, '.gil = "holds"'),
        "f: gil must be .*got 'holds'; did you mean 'hold'",
    ),
    "align": (entry("f", F, ".align = 3"), "f: align must be a power of two"),
    "version": (
        entry("f", F, ".version = -1"),
        "f: version must be an integer from 1 to 1000, got -1",
    ),
    "versions that differ": (
        entry("f", F, ".version = 2") + entry("g", F, '.platform = "cuda", .version = 3'),
        r"g: \.version is 3, and of f, the same operator, 2",
    ),
    "autocast": (entry("f", F, '.autocast = "lower"'), "f: autocast must be .*got 'lower'"),
    "autocast that does not fit": (
        entry("f", F, '.autocast = "bfloat16"'),
        "f: .*::f: autocast='bfloat16' casts arguments to bf16, which no argument takes",
    ),
    "sharding": (
        entry("f", F, '.sharding = "n, m"'),
        r"f: mistake_\w+::f: sharding= names 'm', which is not a dimension.*has n\n +n, m\n {7}\^$",
    ),
    "cost": (entry("f", F, '.cost = "m"'), "f: .*'m'"),
    "platform": (entry("f", F, '.platform = "gpu9"'), "f: .*'gpu9'"),
    "abi": (entry("f", F, '.abi = "pointers"'), r"f: \.abi is 'pointers', but the function is int"),
    "type": (
        'static void f(void) {}\nDLB_EXPORT(f, "' + F + '");\n',
        r"f: the function is not int\(void \*, DLTensor \*, int\)",
    ),
    "C signature": (
        'static void f(void) {}\nDLB_EXPORT(f, "' + F + '", .abi = "void(const float *y)");\n',
        "f: .*'y'",
    ),
    "NULL": (
        "extern int f(void *, DLTensor *, int) __attribute__((weak));\n"
        'DLB_EXPORT(f, "' + F + '");\n',
        "f: the function is NULL",
    ),
    "bytes": (entry("f", F, '.doc = "\\xff"'), r"f: \.doc must be UTF-8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_one_description_leaves_no_kernel(build: Build, mistake: str) -> None:
    """Library and function are named, each time it is loaded."""
    text, message = MISTAKES[mistake]
    namespace = f"mistake_{mistake.replace(' ', '_')}"
    path = build(HEADER + (GOOD + text).replace("MISTAKE", namespace))
    for _ in range(2):
        with pytest.raises(ArgumentError, match=rf"(?s)load_library: {path}: {message}"):
            dlbridge.load_library(path)
    with pytest.raises(KernelError, match="no kernel of this name is known"):
        importlib.import_module("dlbridge.kernels.kernel").find(f"{namespace}::good")


TABLES = {
    "magic": (
        "{1, 1, sizeof(dlb_library), 0, 0}",
        r"its symbol 'dlb_kernels' is not a table of DLB_EXPORT: the magic number is 0x1",
    ),
    "version": (
        "{DLB_LIBRARY_MAGIC, 2, sizeof(dlb_library), 0, 0}",
        r"its table has version 2 \(32 bytes\), and this dlbridge reads version 1; install",
    ),
    "size": ("{DLB_LIBRARY_MAGIC, 1, 8, 0, 0}", r"its table has version 1 \(8 bytes\)"),
    "end": (
        "{DLB_LIBRARY_MAGIC, 1, sizeof(dlb_library), entries + 1, entries}",
        "its table is not an array of pointers",
    ),
    "NULL entry": (
        "{DLB_LIBRARY_MAGIC, 1, sizeof(dlb_library), entries, entries + 1}",
        "entry 0 of its table is not a description: it has 0 bytes",
    ),
    "short entry": (
        "{DLB_LIBRARY_MAGIC, 1, sizeof(dlb_library), entries + 1, entries + 2}",
        "entry 0 of its table is not a description: it has 8 bytes",
    ),
    "newer field": (
        "{DLB_LIBRARY_MAGIC, 1, sizeof(dlb_library), entries + 2, entries + 3}",
        "f: it uses a field of DLB_EXPORT that this dlbridge does not know",
    ),
    "longer entry": ("{DLB_LIBRARY_MAGIC, 1, sizeof(dlb_library), entries + 3, entries + 4}", None),
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_cannot_be_read_is_refused(build: Build, table: str) -> None:
    """A longer description than is known loads while what is new in it is 0."""
    contents, message = TABLES[table]
    source = f"""{HEADER}
    static int f(void *context, DLTensor *arguments, int count) {{
        (void)context; (void)arguments;
        return count - 1;
    }}
    typedef struct {{ dlb_export known; const char *newer; }} longer;
    #define KNOWN {{.size = sizeof(longer), .symbol = "f", .function = (void (*)(void))f, \\
                    .is_dltensors = 1, .schema = "newer::f(x!: f32[n])"}}
    static const size_t small = 8;
    static const longer used = {{KNOWN, "used"}}, unused = {{KNOWN, NULL}};
    extern const void *const entries[];
    const void *const entries[] = {{NULL, &small, &used, &unused}};
    extern const dlb_library crafted;
    const dlb_library crafted = {contents};
    """
    # The header's own table is weak: this one takes its place.
    table_only = '__asm__(".globl dlb_kernels\\n.set dlb_kernels, crafted");\n'
    source = source.replace(HEADER, "#define dlb_kernels not_this_one\n" + HEADER) + table_only
    path = build(source)
    if message is None:
        assert [*dlbridge.load_library(path).kernels] == ["newer::f"]
        return
    with pytest.raises(ArgumentError, match=rf"load_library: {path}: {message}"):
        dlbridge.load_library(path)


# ---- files, threads, processes -------------------------------------------------------------------


def test_a_library_that_is_loaded_again_is_the_same(build: Build, tmp_path: Path) -> None:
    """By whatever path, and what programs hold of it stays what its names mean."""
    path = build(SCALE.replace("NAMESPACE", "again"))
    library = dlbridge.load_library(path)
    assert dlbridge.load_library(str(path)) is library
    link = tmp_path / "link.so"
    link.symlink_to(path)
    hard = tmp_path / "hard.so"
    hard.hardlink_to(path)
    assert dlbridge.load_library(link) is library
    assert dlbridge.load_library(hard) is library
    assert importlib.import_module("dlbridge.kernels.kernel").find("again::scale") is library.scale


def test_a_newer_file_under_the_same_path_is_loaded(build: Build) -> None:
    """The names mean its kernels from then on; those of the old one go on."""
    texts = [
        HEADER + entry("f", "newer_file::f(x!: f64[n])", body=f"*(double *)arguments[0].data = {i};"
                       " return 0;")
        for i in (1, 2, 3)
    ]  # fmt: skip
    libraries = [dlbridge.load_library(build(text)) for text in texts]
    for number, library in enumerate(libraries, 1):
        x = np.zeros(1)
        library.f(x)
        assert x.tolist() == [number]
        assert library.path == libraries[0].path
    find = importlib.import_module("dlbridge.kernels.kernel").find
    assert find("newer_file::f") is libraries[2].f


def test_a_file_that_was_written_over_is_refused(build: Build) -> None:
    """The loader would give the old library, whose memory may hold parts of the new one."""
    path = build(HEADER + entry("f", "written_over::f(x!: f64[n])"))
    library = dlbridge.load_library(path)
    stamp = path.stat()
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))  # as a write does
    with pytest.raises(KernelError, match=r"libmine\.so was written over since this process"):
        dlbridge.load_library(path)
    assert library.f(np.zeros(1)) is None


def test_threads_that_load_one_library_get_the_same(build: Build) -> None:
    """And its kernels are made once."""
    path = build(SCALE.replace("NAMESPACE", "threads"))
    barrier = threading.Barrier(8)
    found: list[Any] = []

    def load() -> None:
        barrier.wait()
        found.append(dlbridge.load_library(path))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(library) for library in found}) == 1


def test_a_forked_process_has_the_library_and_loads_others(
    build: Build, run_python: Callable[..., Any]
) -> None:
    """And its threads do not wait for those of its parent."""
    one = build(SCALE.replace("NAMESPACE", "fork_one"), name="libone.so")
    two = build(SCALE.replace("NAMESPACE", "fork_two"), name="libtwo.so")
    code = """
        import os, sys
        import numpy
        import dlbridge
        one = dlbridge.load_library(sys.argv[1])
        child = os.fork()
        if child == 0:
            assert dlbridge.load_library(sys.argv[1]) is one
            two = dlbridge.load_library(sys.argv[2])
            assert one.scale(numpy.ones(1)).tolist() == two.scale(numpy.ones(1)).tolist() == [2.0]
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    run_python(code, one, two).check()


def test_kernels_outlive_the_library_object(build: Build, run_python: Callable[..., Any]) -> None:
    """The code stays loaded."""
    path = build(SCALE.replace("NAMESPACE", "outlive"))
    code = """
        import gc, sys
        import numpy
        import dlbridge
        scale = dlbridge.load_library(sys.argv[1]).scale
        dlbridge.kernels.library._LIBRARIES.clear()
        gc.collect()
        assert scale(numpy.ones(1)).tolist() == [2.0]
    """
    run_python(code, path).check()


def test_a_file_that_appears_later_is_loaded(build: Build, tmp_path: Path) -> None:
    """A refusal is not kept."""
    with pytest.raises(ArgumentError, match="cannot be loaded"):
        dlbridge.load_library(tmp_path / "libmine.so")
    (tmp_path / "libmine.so").write_text("no library")
    with pytest.raises(ArgumentError, match="cannot be loaded"):
        dlbridge.load_library(tmp_path / "libmine.so")
    assert dlbridge.load_library(build(SCALE.replace("NAMESPACE", "later"))).scale


# ---- libraries that do not describe themselves ---------------------------------------------------

FOR_TVM = """
#define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1
#include <tvm/ffi/tvm_ffi.h>

static void Add(tvm::ffi::TensorView x, double by, tvm::ffi::TensorView out) {
    for (int64_t i = 0; i < x.size(0); ++i)
        static_cast<double *>(out.data_ptr())[i] = static_cast<double *>(x.data_ptr())[i] + by;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add, Add);

static void Same(tvm::ffi::TensorView grad, tvm::ffi::TensorView out) {
    for (int64_t i = 0; i < grad.size(0); ++i)
        static_cast<double *>(out.data_ptr())[i] = static_cast<double *>(grad.data_ptr())[i];
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_vjp, Same);
"""


def compile_for_tvm(source: str, folder: Path) -> Path:
    """Return a library for tvm-ffi in this folder."""
    info = pytest.importorskip("tvm_ffi.libinfo")
    if shutil.which("c++") is None:
        pytest.skip("there is no c++ here")
    (folder / "source.cpp").write_text(source)
    library = Path(info.find_libtvm_ffi())
    command = ["c++", "-std=c++17", "-O0", "-shared", "-fPIC", f"-I{info.find_include_path()}"]
    command += [f"-I{info.find_dlpack_include_path()}", "-o", folder / "libadd.so"]
    command += [folder / "source.cpp", f"-L{library.parent}", "-ltvm_ffi"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "libadd.so"


@pytest.fixture(scope="module")
def for_tvm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library for tvm-ffi, which no test may change."""
    return compile_for_tvm(FOR_TVM, tmp_path_factory.mktemp("tvm"))


ADD = "NAMESPACE::add(x: f64[n], by: float) -> f64[n]"
ADD_VJP = "NAMESPACE::add_vjp(grad: f64[n]) -> f64[n]"


def described(namespace: str) -> dict[str, Any]:
    """Return schemas of the library for tvm-ffi."""
    add = {"schema": ADD.replace("NAMESPACE", namespace), "vjp": "add_vjp", "doc": "Add by."}
    return {"add": add, "add_vjp": ADD_VJP.replace("NAMESPACE", namespace)}


def test_a_library_for_tvm_ffi_is_described_in_the_call(for_tvm: Path) -> None:
    """And is an operator like any other, with its gradient."""
    torch = pytest.importorskip("torch")
    schemas = described("tvm_call")
    library = dlbridge.load_library(for_tvm, schemas=schemas)
    assert [*library.kernels] == ["tvm_call::add", "tvm_call::add_vjp"]
    assert library.add.platforms == ("cpu", "cuda")
    assert str(library.add.__doc__).startswith("Add by.\n")
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    y = library.add(x, 3.0)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([4.0, 4.0], [1.0, 1.0])
    assert torch.ops.tvm_call.add(x.detach(), 1.0).tolist() == [2.0, 2.0]
    assert library.add(np.ones(2), 2.0).tolist() == [3.0, 3.0]
    assert dlbridge.load_library(for_tvm, schemas=schemas) is library


def test_a_library_for_tvm_ffi_is_described_by_a_file_beside_it(
    for_tvm: Path, tmp_path: Path
) -> None:
    """Of TOML; what the call says counts instead."""
    path = tmp_path / "libadd.so"
    shutil.copy(for_tvm, path)
    beside = tmp_path / "libadd.so.toml"
    beside.write_text(
        f'add_vjp = "{ADD_VJP}"\n[add]\nschema = "{ADD}"\nvjp = "add_vjp"\nversion = 2\n'.replace(
            "NAMESPACE", "tvm_file"
        )
    )
    library = dlbridge.load_library(path)
    assert library.add.vjp is library.kernels["tvm_file::add_vjp"]
    assert library.add.version == 2
    assert library.add(np.ones(2), 2.0).tolist() == [3.0, 3.0]
    assert [*dlbridge.load_library(path, schemas=described("tvm_instead")).kernels] == [
        "tvm_instead::add", "tvm_instead::add_vjp"
    ]  # fmt: skip
    beside.write_text("add = \n")
    with pytest.raises(ArgumentError, match=rf"{beside} is no TOML: .*line 1"):
        dlbridge.load_library(path)
    beside.write_text(f'[add]\nschema = "{ADD}"\nversion = "2"\n')
    with pytest.raises(ArgumentError, match=rf"{beside}: add: version must be an integer, got '2'"):
        dlbridge.load_library(path)
    beside.write_text("add = 3\n")
    with pytest.raises(ArgumentError, match=rf"{beside}: add: a schema is needed.*got 3"):
        dlbridge.load_library(path)


def test_a_function_for_tvm_ffi_without_a_schema_is_a_kernel_without_one(for_tvm: Path) -> None:
    """It writes into its last tensor."""
    library = dlbridge.load_library(for_tvm)
    out = np.zeros(2)
    library.add(np.ones(2), 2.0, out)
    assert out.tolist() == [3.0, 3.0]
    assert library.add.schema is None
    assert {"add", "add_vjp"} == {*library.kernels}


def test_a_function_for_tvm_ffi_with_metadata_returns_a_number_or_says_a_size(
    tmp_path: Path,
) -> None:
    """The number is not among its parameters; the tensor for the size is, behind the results."""
    source = """
    #define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1
    #include <tvm/ffi/tvm_ffi.h>

    using tvm::ffi::TensorView;
    static int64_t Length(TensorView x) { return x.size(0); }
    TVM_FFI_DLL_EXPORT_TYPED_FUNC(length, Length);

    static void First(TensorView x, TensorView out, TensorView k) {
        *static_cast<int64_t *>(k.data_ptr()) = 1;
        *static_cast<double *>(out.data_ptr()) = *static_cast<double *>(x.data_ptr());
    }
    TVM_FFI_DLL_EXPORT_TYPED_FUNC(first, First);
    """
    path = compile_for_tvm(source, tmp_path)
    length, first = "tvm_says::length(x: f64[n]) -> int", "tvm_says::first(x: f64[n]) -> f64[k<=n]"
    library = dlbridge.load_library(path, schemas={"length": length, "first": first})
    assert library.length(np.ones(3)) == 3
    assert library.first(np.array([5.0, 6.0])).tolist() == [5]
    for wrong in (length.replace("int", "f64[]"), length.replace("int", "(int, f64[])")):
        with pytest.raises(ArgumentError, match=r"takes 1 values .* passes 2: 1 arguments, then 1"):
            dlbridge.load_library(path, schemas={"length": wrong})


def test_functions_of_c_are_described_in_the_call(build: Build) -> None:
    """Those of a library that never heard of dlbridge."""
    path = build(
        "void plus_one(const double *x, double *out, long n);\n"
        "void plus_one(const double *x, double *out, long n)"
        " { for (long i = 0; i < n; i++) out[i] = x[i] + 1; }\n"
    )
    abi = "void(const double *x, double *out, long n)"
    fields = {"schema": "in_call::plus_one(x: f64[n]) -> f64[n]", "abi": abi}
    library = dlbridge.load_library(path, schemas={"plus_one": fields})
    assert library.plus_one(np.ones(1)).tolist() == [2.0]
    assert library["plus_one"] is not library.plus_one


@pytest.mark.parametrize(
    ("schemas", "said"),
    [
        (3, r"schemas= must be a dict of schemas .*got int"),
        ({"add": 3}, r"schemas=: add: a schema is needed.*got 3"),
        ({3: ADD}, r"schemas=: 3: a schema is needed"),
        ({"add": {"vjp": "add_vjp"}}, r"schemas=: add: a schema is needed"),
        ({"add": {"schema": ADD, "vpj": "x"}}, r"add: there is no field 'vpj'; did you mean 'vjp'"),
        ({"add": {"schema": ADD, "vjp": 3}}, r"add: vjp must be text, got 3"),
        ({"add": {"schema": ADD, "align": "x"}}, r"add: align must be an integer, got 'x'"),
        ({"add": {"schema": ADD, "align": 3}}, r"add: align must be a power of two"),
        ({"add": {"schema": ADD, "vjp": "x"}}, r"add: \.vjp is 'x', which the library does not"),
        ({"add": {"schema": ADD, "abi": "pointers"}}, r"add: a tvm-ffi function cannot have abi="),
        ({"ad": ADD}, r"ad: the library has no function of this name; did you mean 'add'"),
        ({"add": "add(x)"}, r"schemas=: add: [^^]*'::'[^^]*\^"),
        ({"add": "NAMESPACE::add(x: f64[n]) -> f64[n]"}, r"add: the function takes 3 values .*2:"),
        ({"add": ADD, "add_vjp": ADD.replace(", by: float", "")}, "has a function for cpu already"),
    ],
)  # fmt: skip
def test_a_wrong_description_is_refused(for_tvm: Path, schemas: Any, said: str) -> None:
    """It is named, with what is known about the function."""
    with pytest.raises(ArgumentError, match=f"load_library: .*{said}"):
        dlbridge.load_library(for_tvm, schemas=schemas)


def test_a_library_for_tvm_ffi_needs_it(for_tvm: Path, run_python: Callable[..., Any]) -> None:
    """The refusal says what to install."""
    code = """
        import sys
        sys.modules["tvm_ffi"] = None
        import dlbridge
        try:
            dlbridge.load_library(sys.argv[1])
        except dlbridge.FrameworkMissingError as error:
            assert str(error).startswith("load_library: "), error
            assert "dlbridge[tvm]" in str(error), error
        else:
            raise AssertionError
    """
    run_python(code, for_tvm).check()


# ---- folders of builds ---------------------------------------------------------------------------

MACHINE = f"{platform.machine()}-linux"


@pytest.fixture
def builds(for_tvm: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return `builds(*names)`: a folder with these builds of the library for tvm-ffi."""

    def make(*names: str) -> Path:
        for name in names:
            folder = tmp_path / "kernel" / "build" / name
            folder.mkdir(parents=True)
            shutil.copy(for_tvm, folder / "_add.abi3.so")
            (folder / "__init__.py").write_text("raise RuntimeError('imported')")
        return tmp_path / "kernel"

    return make


def test_a_folder_of_builds_gives_the_one_for_this_machine(builds: Callable[..., Path]) -> None:
    """Without running the Python code in it."""
    own = f"tvm-ffi01-cpu-{MACHINE}"
    folder = builds(own, "tvm-ffi01-cpu-mips-linux", f"torch210-cxx11-cpu-{MACHINE}", "other")
    library = dlbridge.load_library(folder, schemas=described("in_folder"))
    assert library.path == str(folder / "build" / own / "_add.abi3.so")
    assert library.add(np.ones(2), 1.0).tolist() == [2.0, 2.0]
    again = dlbridge.load_library(folder / "build" / own, schemas=described("in_folder"))
    assert again is library


def test_a_build_for_cuda_is_taken_where_there_is_a_gpu(
    builds: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one for the CPU elsewhere; of several, none is guessed."""
    cpu, gpu = f"tvm-ffi01-cpu-{MACHINE}", f"tvm-ffi01-cu128-{MACHINE}"
    folder = builds(cpu, gpu)
    find = importlib.import_module("dlbridge.kernels.builds").find_built
    for is_available, name in ((False, cpu), (True, gpu)):
        monkeypatch.setattr("dlbridge.cuda.is_available", lambda is_there=is_available: is_there)
        assert find(folder).parent.name == name
    builds(f"tvm-ffi01-cu130-{MACHINE}")
    with pytest.raises(ArgumentError, match=rf"several builds .*cu128-{MACHINE}, .*cu130-"):
        dlbridge.load_library(folder)


def test_a_folder_without_one_library_for_this_machine_is_refused(
    builds: Callable[..., Path], tmp_path: Path
) -> None:
    """With what there is."""
    with pytest.raises(ArgumentError, match="has no libraries with kernels, of DLB_EXPORT or for"):
        dlbridge.load_library(tmp_path)
    folder = builds("tvm-ffi01-cpu-mips-linux")
    with pytest.raises(
        ArgumentError, match=rf"as in build/tvm-ffi01-cpu-{MACHINE}; it has tvm-f.*"
    ):
        dlbridge.load_library(folder)
    own = builds(f"tvm-ffi01-cpu-{MACHINE}") / "build" / f"tvm-ffi01-cpu-{MACHINE}"
    shutil.copy(own / "_add.abi3.so", own / "second.so")
    with pytest.raises(ArgumentError, match=r"(?s)has 2 libraries .*_add\.abi3\.so\n.*second\.so"):
        dlbridge.load_library(folder)


# ---- packages ------------------------------------------------------------------------------------


@pytest.fixture
def install(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return `install(distribution, package, *libraries)`: the folder of the package.

    A library is named by its file; it exports `<package>::scale`, those called "plain" nothing.
    """
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(distribution: str, package: str, *libraries: str) -> Path:
        folder = site / package
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
        text = SCALE.replace("NAMESPACE", package)
        for library in libraries:
            (folder / library).parent.mkdir(exist_ok=True)
            name = Path(library).name
            build(HEADER if "plain" in name else text, name=name).rename(folder / library)
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0")
        files = [f"{package}/{library},," for library in ("__init__.py", *libraries)]
        (info / "RECORD").write_text("\n".join(files))
        return folder

    return make


def test_a_package_gives_its_library(
    install: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """By the name of the distribution or of the package; the command lists its kernels as well."""
    folder = install("My-Kernels", "mykernels_a", "lib/libkernels.so.1", "_plain.so")
    for name in ("my-kernels", "My_Kernels", "mykernels_a", "mykernels_a.lib"):
        library = dlbridge.load_package(name)
        assert library.path == str(folder / "lib" / "libkernels.so.1")
        assert library.scale(np.ones(1)).tolist() == [2.0]
    assert importlib.import_module("dlbridge.cli").main(["kernels", "my-kernels"]) == 0
    assert "mykernels_a::scale" in capsys.readouterr().out


def test_the_command_takes_a_package_beside_a_folder_of_its_name(
    install: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside the project that it was built from."""
    install("mykernels-e", "mykernels_e", "libkernels.so")
    project = tmp_path / "beside"
    (project / "mykernels_e").mkdir(parents=True)
    monkeypatch.chdir(project)
    cli = importlib.import_module("dlbridge.cli")
    for command in ("kernels", "stubs"):
        assert cli.main([command, "mykernels_e"]) == 0
        assert "scale_vjp" in capsys.readouterr().out


def test_a_package_without_one_library_is_refused(install: Callable[..., Path]) -> None:
    """With what there is."""
    install("no-library", "mykernels_b")
    install("plain-library", "mykernels_c", "_plain.so")
    install("two-libraries", "mykernels_d", "one.so", "two.so")
    with pytest.raises(ArgumentError, match=r"no-library exports .*there is no file \*\.so in it"):
        dlbridge.load_package("no-library")
    with pytest.raises(ArgumentError, match=r"plain-library exports .*; it has _plain\.so"):
        dlbridge.load_package("plain-library")
    with pytest.raises(ArgumentError, match=r"(?s)2 libraries of two-libraries .*one\.so.*two\.so"):
        dlbridge.load_package("two-libraries")
    with pytest.raises(ArgumentError, match=r"no package 'no-librari' is .*mean 'no-library'"):
        dlbridge.load_package("no-librari")


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is not a valid path: it contains a NUL character"):
        dlbridge.load_library("./lib\0.so")


@pytest.mark.fast(lambda name: name in ("", "os", ".numpy"))
@pytest.mark.parametrize(
    ("name", "said"),
    [("", "got ''"), (3, "got int"), ("os", "no package 'os'"), ("__main__", "no package"),
     (".numpy", "no package '.numpy'"), ("numpy.nowhere", "no package 'numpy.nowhere'")],
)  # fmt: skip
def test_a_name_of_no_package_is_refused(name: Any, said: str) -> None:
    """Nothing is imported to find out."""
    with pytest.raises(ArgumentError, match=f"load_package: .*{said}"):
        dlbridge.load_package(name)


# ---- files that are only read --------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [(), ("-Wl,-z,pack-relative-relocs",), ("-Wl,--hash-style=sysv",), ("-Wl,--hash-style=gnu",)],
    ids=["plain", "packed", "sysv", "gnu"],
)
def test_a_file_says_what_it_exports(build: Build, flags: tuple[str, ...]) -> None:
    """The same as it does once it is loaded, also with packed relocations."""
    packages = importlib.import_module("dlbridge.kernels.packages")
    path = build(SCALE.replace("NAMESPACE", "listed"), flags=flags)
    listed = packages.list_exports(path)
    assert [(each.symbol, str(each.schema)) for each in listed] == [
        ("scale", "listed::scale(x: f64[n], *, by: float = 2.0) -> f64[n]"),
        ("scale_vjp", "listed::scale_vjp(grad: f64[n], *, by: float) -> f64[n]"),
        ("scale_jvp", "listed::scale_jvp(tangent_x: f64[n], *, by: float) -> f64[n]"),
    ]
    assert listed[0].options == {"vjp": "scale_vjp", "jvp": "scale_jvp", "gil": "release"}
    assert listed[0].doc == "Return by * x, of each element."
    exports = importlib.import_module("dlbridge.kernels.exports")
    library = dlbridge.load_library(path)
    loaded = exports.read_exports("", library._table())
    assert [each._replace(address=0) for each in loaded] == [
        each._replace(address=0) for each in listed
    ]


@pytest.mark.full
def test_a_damaged_file_is_refused(build: Build) -> None:
    """Whatever is wrong in it: cut off anywhere, or with one byte that is another."""
    packages = importlib.import_module("dlbridge.kernels.packages")
    path = build(SCALE.replace("NAMESPACE", "damaged"), flags=("-s",))
    contents = path.read_bytes()
    damaged = [contents[:size] for size in range(0, len(contents), 997)]
    for place in [*range(16, 1024, 5), *range(1024, len(contents), 61)]:
        for other in (0, 255):
            damaged.append(contents[:place] + bytes([other]) + contents[place + 1 :])
    for each in damaged:
        path.write_bytes(each)
        try:
            packages.list_exports(path)
        except ArgumentError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_a_library_for_another_machine_says_so(build: Build, tmp_path: Path) -> None:
    """The system loader only reports that the file is missing."""
    contents = bytearray(build(SCALE.replace("NAMESPACE", "other")).read_bytes())
    for number, name in ((62, "x86_64"), (183, "aarch64")):
        if name != platform.machine():
            contents[18] = number
            other = tmp_path / f"lib{name}.so"
            other.write_bytes(contents)
            text = f"lib{name}.so cannot be loaded: it is for {name}, and this machine is "
            with pytest.raises(ArgumentError, match=text + platform.machine()):
                dlbridge.load_library(other)


def test_a_file_that_is_cut_off_is_not_loaded(build: Build, tmp_path: Path) -> None:
    """The loader would map it, and the process end with SIGBUS: a copy was not finished."""
    contents = build(SCALE.replace("NAMESPACE", "half")).read_bytes()
    for size in range(0, len(contents) // 2 + 1, 331):
        half = tmp_path / f"libhalf{size}.so"
        half.write_bytes(contents[:size])
        with pytest.raises(ArgumentError, match=f"libhalf{size}.so cannot be loaded: "):
            dlbridge.load_library(half)
    whole = tmp_path / "libwhole.so"
    whole.write_bytes(contents)
    assert "half::scale" in dlbridge.load_library(whole).kernels


def test_the_command_lists_kernels(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """With what they are told; nothing of the library runs."""
    cli = importlib.import_module("dlbridge.cli")
    path = build(
        SCALE.replace("NAMESPACE", "command")
        + "__attribute__((constructor)) static void run(void) { __builtin_trap(); }\n"
    )
    assert cli.main(["kernels", "--json", str(path)]) == 0
    scale = json.loads(capsys.readouterr().out)[0]
    assert scale == {
        "function": "scale",
        "name": "command::scale",
        "schema": "command::scale(x: f64[n], *, by: float = 2.0) -> f64[n]",
        "platform": "cpu",
        "abi": "dltensors",
        "doc": "Return by * x, of each element.",
        "vjp": "scale_vjp",
        "jvp": "scale_jvp",
        "gil": "release",
    }
    assert cli.main(["kernels", str(path)]) == 0
    assert "vjp=scale_vjp" in capsys.readouterr().out


def test_the_command_says_where_nothing_can_be_listed(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its exit status, too."""
    cli = importlib.import_module("dlbridge.cli")
    wrong = HEADER + entry("f", "wrong::f(x: f33[n]) -> f32[n]")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("text")
    for path, status, said in (
        (build(HEADER), 1, "exports no kernels with DLB_EXPORT"),
        (build(wrong, name="libwrong.so"), 2, "f: unknown dtype 'f33'"),
        (tmp_path / "text", 2, "it is not a library for Linux"),
        (tmp_path / "pipe", 2, "it is not a file"),
        (tmp_path, 2, "it is not a file"),
        (tmp_path / "missing", 2, "No such file"),
    ):
        assert cli.main(["kernels", str(path)]) == status
        assert f"dlbridge kernels: {path}" in (found := capsys.readouterr().err)
        assert said in found
    assert cli.main(["kernels", "no-package"]) == 2
    assert "dlbridge kernels: no package 'no-package' is installed" in capsys.readouterr().err


def test_the_command_says_how_to_compile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its line is a part of a shell's command."""
    cli = importlib.import_module("dlbridge.cli")
    assert cli.main(["config", "--includes"]) == 0
    includes = capsys.readouterr().out
    assert cli.main(["config", "--cflags"]) == 0
    cflags = capsys.readouterr().out
    assert cflags == includes.strip() + " -fPIC\n"
    source = tmp_path / "source.c"
    source.write_text(SCALE.replace("NAMESPACE", "by_command"))
    target = tmp_path / "libmine.so"
    subprocess.run(["cc", *shlex.split(cflags), "-shared", "-o", target, source], check=True)
    assert dlbridge.load_library(target).scale(np.ones(1)).tolist() == [2.0]
