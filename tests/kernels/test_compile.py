"""compile_c: what compiles, what is cached, what is said where it does not work."""

from __future__ import annotations

import errno
import os
import platform
import pwd
import re
import stat
import subprocess
import textwrap
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, KernelError
from dlbridge.kernels import cache as cache_module
from dlbridge.kernels import library as compile_module

TWICE = r"""
#include "dlpack.h"

int twice(void *context, DLTensor *args, int count) {
    const float *x = args[0].data;
    float *out = args[1].data;
    for (int64_t i = 0; i < args[0].shape[0]; i++)
        out[i] = FACTOR * x[i];
    return 0;
}

int nothing(void *context, DLTensor *args, int count) { return 0; }
static int hidden(void *context, DLTensor *args, int count) { return 0; }
"""
SCHEMA = "test::twice(x: f32[n]) -> f32[n]"
X = np.array([1, 2], "f4")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Any) -> Path:
    """Give each test a cache of its own; without a compiler `compiled` skips it."""
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compile_twice(factor: str = "2", **options: Any) -> dlbridge.Kernel:
    return dlbridge.compile_c(TWICE, "twice", SCHEMA, flags=[f"-DFACTOR={factor}"], **options)


def test_text_becomes_a_kernel(cache: Path) -> None:
    """Both headers are on the include path, the options of wrap are taken."""
    kernel = compile_twice(align=32)
    assert kernel(X).tolist() == [2, 4]
    assert (kernel.align, kernel.functions["cpu"].name) == (32, "twice")
    assert len(list(cache.iterdir())) == 1


def test_the_same_text_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for its other functions; other flags are another library."""
    compile_twice()
    (library,) = cache.iterdir()
    written = library.stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert compile_twice()(X).tolist() == [2, 4]
    flags = ["-DFACTOR=2"]
    dlbridge.compile_c(TWICE, "nothing", flags=flags)
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [written]
    monkeypatch.undo()


def test_other_flags_or_text_give_another_library() -> None:
    """A kernel that was compiled before goes on doing what it did."""
    two, three = compile_twice("2"), compile_twice("3")
    assert three(X).tolist() == [3, 6]
    assert two(X).tolist() == [2, 4]


def test_a_changed_header_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of dlbridge must not use libraries built for the old structs."""
    headers = tmp_path / "include"
    headers.mkdir()
    for name in compile_module._C.headers:
        (headers / name).write_text((compile_module.include_directory() / name).read_text())
    compile_twice()
    monkeypatch.setattr(compile_module, "include_directory", lambda: headers)
    compile_twice()
    (headers / "dlpack.h").write_text((headers / "dlpack.h").read_text() + "\n/* newer */\n")
    compile_twice()
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("flags", [["-I{}"], ["-I", "{}"], ["-include", "{}/own.h"], []])
def test_a_changed_file_that_the_text_includes_is_noticed(
    flags: list[str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is included by another, and beside it; what is compiled stays as it is."""
    folder = tmp_path / "own"
    (folder / "deep").mkdir(parents=True)
    (folder / "own.h").write_text('#include "deep/factor.h"\n')
    (folder / "deep" / "factor.h").write_text('#include "two.h"\n')
    monkeypatch.chdir(folder if not flags else tmp_path)
    given = [flag.format(folder) for flag in flags]
    text = TWICE if "-include" in flags else f'#include "own.h"\n{TWICE}'
    made = []
    for factor in (2, 3, 3):
        (folder / "deep" / "two.h").write_text(f"#define FACTOR {factor}\n")
        kernel = dlbridge.compile_c(
            text, "twice", "compiled::own(x: f32[n]) -> f32[n]", flags=given
        )
        made.append(kernel)
    assert [kernel(X).tolist() for kernel in made] == [[2, 4], [3, 6], [3, 6]]
    assert len(list(cache.glob("*.so"))) == 2


def test_files_of_two_folders_may_include_each_other(cache: Path, tmp_path: Path) -> None:
    for folder, other in (("one", "two"), ("two", "one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.h").write_text(
            f'#pragma once\n#include "../{other}/{other}.h"\n#define FACTOR 2\n'
        )
    kernel = dlbridge.compile_c(
        f'#include "one.h"\n{TWICE}', "twice", "compiled::both(x: f32[n]) -> f32[n]",
        flags=[f"-I{tmp_path / 'one'}"],
    )  # fmt: skip
    assert kernel(X).tolist() == [2, 4]


@pytest.mark.parametrize(("text", "read"), [('"own.h"', "quoted"), ("<own.h>", "plain")])
def test_a_file_that_several_folders_have_is_the_one_that_the_compiler_reads(
    text: str, read: str, cache: Path, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("plain", "quoted")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "own.h").write_text("#define FACTOR 9\n")
    for factor in (2, 3):
        (folders[read] / "own.h").write_text(f"#define FACTOR {factor}\n")
        kernel = dlbridge.compile_c(
            f"#include {text}\n{TWICE}", "twice", "compiled::which(x: f32[n]) -> f32[n]",
            flags=["-I", str(folders["plain"]), "-iquote", str(folders["quoted"])],
        )  # fmt: skip
        assert kernel(X).tolist() == [factor, 2 * factor]


def test_an_error_in_the_text_is_shown_with_its_line(cache: Path) -> None:
    """Line numbers are those of the text; nothing is left in the cache."""
    with pytest.raises(ArgumentError) as caught:
        dlbridge.compile_c("int broken(void *context)\n{\n    returns 0;\n}\n", "broken")
    text = str(caught.value)
    assert text.startswith("compile_c: ")
    assert "source.c:3:" in text
    assert "returns" in text
    assert list(cache.iterdir()) == []


HEADER = '#include "dlbridge_kernel.h"\n'
MISTAKES = {
    "implicit declaration of function": 'return atof("2.5") > 2;',
    "implicit declaration of function .dlb_get_bool": "return dlb_get_bool(context, 0);",
    "incompatible pointer": "float *x = args[0].data; double *y = x; return y[0] > 0;",
    "integer from pointer|pointer to integer": "int x = args; return x;",
    "defaults to .int.|implicit.int": "static x = 3; return x;",
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_that_computes_garbage_is_an_error(cache: Path, said: str) -> None:
    """Compilers before GCC 14 warn of it, and go on."""
    body = f"{HEADER}int f(void *context, DLTensor *args, int count) {{\n{MISTAKES[said]}\n}}\n"
    with pytest.raises(ArgumentError, match="cannot compile the source") as caught:
        dlbridge.compile_c(body, "f")
    assert "source.c:3:" in str(caught.value)
    assert re.search(said, str(caught.value))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    "body", ["int f(void *c, DLTensor *x, int n);", "int f(void) { return dlb_get_bool(0, 0); }"]
)
def test_a_source_without_the_header_is_told_so(cache: Path, body: str) -> None:
    with pytest.raises(ArgumentError, match=r'which lacks #include "dlbridge_kernel\.h":'):
        dlbridge.compile_c(body, "f")
    with pytest.raises(ArgumentError, match="cannot compile the source:"):
        dlbridge.compile_c("int f(void) { return other(); }", "f")


def test_such_a_mistake_can_be_allowed() -> None:
    source = (
        f"{HEADER}int f(void *context, DLTensor *args, int count) {{ int x = args; return 0; }}"
    )
    with pytest.warns(UserWarning, match="int-conversion"):
        kernel = dlbridge.compile_c(source, "f", flags=["-Wno-error=int-conversion"])
    kernel(np.ones(1))


def test_warnings_of_the_compiler_are_shown(cache: Path) -> None:
    """Each time: who comes back to a notebook has forgotten them; at the place of the call."""
    source = (
        f"{HEADER}int f(void *context, DLTensor *args, int count) {{\n int unused; return 0; }}"
    )
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"^compile_c: \S+ warns:\n") as caught:
            dlbridge.compile_c(source, "f", flags=["-Wall"])
        (warning,) = caught
        assert "source.c:3:" in str(warning.message)
        assert "unused" in str(warning.message)
        assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dlbridge.compile_c(source, "f")
    assert sorted(path.suffix for path in cache.iterdir()) == [".so", ".so", ".warnings"]


DOUBTS = {
    "-Wreturn-type": "if (count) return 0;",
    "-Wuninitialized": "int x; return x;",
    "-Wformat": 'char text[9]; return __builtin_snprintf(text, 9, "%s", 1);',
}


@pytest.mark.parametrize("name", DOUBTS)
@pytest.mark.parametrize("language", ["c", "cpp"])
def test_the_compiler_warns_of_code_that_may_compute_garbage(name: str, language: str) -> None:
    linkage = 'extern "C" ' if language == "cpp" else ""
    body = f"int f(void *context, DLTensor *args, int count) {{\n{DOUBTS[name]}\n}}\n"
    with pytest.warns(UserWarning, match=name) as caught:
        getattr(dlbridge, f"compile_{language}")(HEADER + linkage + body, "f")
    assert "source.c" in str(caught[0].message)


def test_a_function_that_nothing_defines_is_named_with_its_lines() -> None:
    source = (
        "/* dlb_get_bool\n */\nint dlb_get_bool(void *, int);\n"
        "int f(void *context, void *args, int count) { return dlb_get_bool(context, 0); }\n"
    )
    with pytest.raises(ArgumentError, match=r"line 3, 4 of the source uses 'dlb_get_bool', which"):
        dlbridge.compile_c(source, "f")


@pytest.mark.parametrize("name", ["thrice", "hidden"])
def test_a_function_that_is_not_there_is_named(name: str) -> None:
    """`static` functions are not there for others."""
    with pytest.raises(ArgumentError, match=f"has no function '{name}' that others can call"):
        dlbridge.compile_c(TWICE, name, flags=["-DFACTOR=2"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((b"int f;", "f"), "source must be text, got bytes"),
        (("/*\0*/ int f;", "f"), "source must be text without NUL and lone surrogates"),
        (("/*\ud800*/ int f;", "f"), "source must be text without NUL and lone surrogates"),
        (("int f;", 7), "name must be text, got int"),
        (("int f;", "a b"), "name must be that of a C function, got 'a b'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, text: str) -> None:
    """Before anything is compiled."""
    with pytest.raises(ArgumentError, match=text):
        dlbridge.compile_c(*arguments)


def test_flags_are_a_sequence() -> None:
    """Text would be taken letter by letter."""
    with pytest.raises(ArgumentError, match=r"^compile_c: flags must be a list of .*'-DF"):
        dlbridge.compile_c(TWICE, "twice", flags="-DFACTOR=2")


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By argument, by $CC, or none at all."""
    with pytest.raises(KernelError, match="no-such-cc cannot be run"):
        compile_twice(compiler="no-such-cc")
    monkeypatch.setenv("CC", "no-such-cc --flag")
    with pytest.raises(KernelError, match="no-such-cc cannot be run"):
        compile_twice()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KernelError, match=r"there is no C compiler here"):
        compile_twice()


def test_a_cache_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was asked for; the default one is replaced by a directory of the process."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(KernelError, match=r"\$DLBRIDGE_CACHE_DIR cannot be made"):
        compile_twice()
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_twice()(X).tolist() == [2, 4]


def test_the_default_directory_is_that_of_the_desktop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$XDG_CACHE_HOME/dlbridge, which others may empty at any time."""
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile_twice()
    (library,) = (tmp_path / "dlbridge").iterdir()
    library.unlink()
    assert compile_twice()(X).tolist() == [2, 4]


def test_threads_may_compile_the_same_text_at_once(cache: Path) -> None:
    """Each has a file of its own until the last step."""
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(compile_twice()(X).tolist()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[2, 4]] * 6
    assert [path.suffix for path in cache.iterdir()] == [".so"]


@pytest.mark.full
def test_processes_may_compile_the_same_text_at_once(
    cache: Path, run_python: Callable[..., Any]
) -> None:
    """As the workers of a job do when it starts."""
    code = """
        import subprocess, sys
        import dlbridge, numpy
        text = open(sys.argv[1]).read()
        if len(sys.argv) == 2:
            command = [sys.executable, "-c", open(sys.argv[1] + ".py").read(), sys.argv[1], "x"]
            workers = [subprocess.Popen(command) for _ in range(4)]
            assert [worker.wait() for worker in workers] == [0] * 4
        else:
            kernel = dlbridge.compile_c(text, "twice", flags=["-DFACTOR=2"])
            out = numpy.zeros(2, "f4")
            kernel(numpy.ones(2, "f4"), out)
            assert out.tolist() == [2, 2]
    """
    cache.mkdir()
    source = cache.parent / "twice.c"
    source.write_text(TWICE)
    (cache.parent / "twice.c.py").write_text(textwrap.dedent(code))
    run_python(code, source, DLBRIDGE_CACHE_DIR=str(cache)).check()
    assert len(list(cache.iterdir())) == 1


def test_c_signatures_are_an_abi(compiled: Any) -> None:
    """Bare pointers and sizes, with the names of the schema."""
    kernel = compiled(
        "raw_axpy",
        "test::raw_axpy(x: f32[n], y: f32[n], *, alpha: float) -> f32[n]",
        abi="void(const float *x, const float *y, float *out, int64_t n, float alpha)",
    )
    assert kernel(X, X, alpha=3).tolist() == [4, 8]


PLAIN = """
#include <stdint.h>
void scale(const double *x, double *out, int64_t n, double a) {
    for (int64_t i = 0; i < n; i++)
        out[i] = a * x[i];
}
"""
SCALE = "test::scale(x: f64[n], *, a: float) -> f64[n]"


@pytest.mark.parametrize("abi", [{}, {"abi": "dltensors"}, {"abi": "pointers"}])
def test_plain_pointers_are_not_called_with_dltensors(cache: Path, abi: dict[str, str]) -> None:
    """It would compile, and compute garbage."""
    with pytest.raises(ArgumentError, match="calls 'scale' as `int scale\\(") as caught:
        dlbridge.compile_c(PLAIN, "scale", SCALE, **abi)
    assert "the source defines `scale(const double *x, double *out, int64_t n, double a)`" in str(
        caught.value
    )
    assert "abi='void(const float *x" in str(caught.value)


COMPLEX = """
#include <complex.h>
#include <stdint.h>
void turn(const float complex *x, const double _Complex *y, complex double *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = conjf(x[i]) * y[i];
}
"""


def test_complex_numbers_are_spelled_as_in_c(cache: Path) -> None:
    schema = "test::turn(x: c64[n], y: c128[n]) -> c128[n]"
    abi = "void(const float complex *x, const double _Complex *y, complex double *out, int64_t n)"
    kernel = dlbridge.compile_c(COMPLEX, "turn", schema, abi)
    x, y = np.array([1 + 2j], np.complex64), np.array([3 - 1j])
    assert kernel(x, y).tolist() == [1 - 7j]
    with pytest.raises(ArgumentError, match="calls 'turn' as `int turn"):
        dlbridge.compile_c(COMPLEX, "turn", schema)


@pytest.mark.parametrize(
    "abi",
    [
        "void(const double *x, double *out, int64_t n, float a)",
        "void(const double *x, double *out, int n, double a)",
        "int(const double *x, double *out, int64_t n, double a)",
        "void(const double *x, double *out, double a, int64_t n)",
    ],
)
def test_a_signature_is_compared_with_the_source(cache: Path, abi: str) -> None:
    with pytest.raises(ArgumentError, match="defines 'scale' otherwise than abi=") as caught:
        dlbridge.compile_c(PLAIN, "scale", SCALE, abi)
    assert "abi:" in str(caught.value)


def test_the_right_signature_is_compared_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abi = "void (*)(const double *x, double *out, int64_t n, double a);"
    x = np.array([1.0, 2.0])
    assert dlbridge.compile_c(PLAIN, "scale", SCALE, abi)(x, a=3.0).tolist() == [3, 6]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert dlbridge.compile_c(PLAIN, "scale", SCALE, abi)(x, a=4.0).tolist() == [4, 8]


@pytest.mark.parametrize(
    "definition",
    [
        "int f(void *context, void *arguments, int count) {",
        "int f(dlb_context *context, const DLTensor *arguments, int count) {",
        "#define ARGS void *c, DLTensor *a, int n\nint f(ARGS) {",
        "/* not f(float *x) { */ int f(void *c, DLTensor a[], int n) {",
    ],
)
def test_functions_of_dltensors_are_called(cache: Path, definition: str) -> None:
    source = f'#include "dlbridge_kernel.h"\n{definition} return 0; }}\n'
    assert dlbridge.compile_c(source, "f", "test::f(x!: f64[n])")(np.ones(2)) is None


# ---- what is in the cache is code ---------------------------------------------------------------


def entry(cache: Path) -> Path:
    (found,) = cache.glob("*.so")
    return found


@pytest.mark.fast(lambda damage: damage == "truncated")
@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_library_is_compiled_again(
    cache: Path, run_python: Callable[..., Any], damage: str
) -> None:
    """A truncated one ended the process with SIGBUS, in the middle of a call."""
    compile_twice()
    library = entry(cache)
    contents = library.read_bytes()
    library.unlink()  # the old file is loaded here, and stays as it is
    library.write_bytes(
        {
            "truncated": contents[:4096],
            "changed": contents[:-1] + bytes([contents[-1] ^ 1]),
            "empty": b"",
        }[damage]
    )
    library.chmod(0o700)
    code = """
        import sys, dlbridge, numpy
        text, flags = open(sys.argv[1]).read(), ["-DFACTOR=2"]
        kernel = dlbridge.compile_c(text, "twice", sys.argv[2], flags=flags)
        assert kernel(numpy.array([1, 2], "f4")).tolist() == [2, 4]
    """
    source = cache.parent / "twice.c"
    source.write_text(TWICE)
    run_python(code, source, SCHEMA, DLBRIDGE_CACHE_DIR=str(cache)).check()
    assert entry(cache).read_bytes() == contents


@pytest.mark.parametrize("planted", ["link", "writable"])
def test_a_library_that_another_user_could_change_is_compiled_again(
    cache: Path, planted: str
) -> None:
    """Even with the right contents: they may be exchanged afterwards."""
    compile_twice()
    library = entry(cache)
    if planted == "link":
        library.rename(cache / "elsewhere")
        library.symlink_to(cache / "elsewhere")
    else:
        library.chmod(0o777)
    assert compile_twice()(X).tolist() == [2, 4]
    assert not library.is_symlink()
    assert stat.S_IMODE(library.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_cache_that_others_can_write_to_is_refused(cache: Path, mode: int) -> None:
    """Root loaded the library of another user from there."""
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(KernelError, match=rf"others may write to .*mode {mode:o}\); chmod go-w"):
        compile_twice()
    assert [*cache.iterdir()] == []


def test_a_cache_below_a_folder_that_others_can_write_to_is_refused(cache: Path) -> None:
    """They could put another folder in its place."""
    cache.mkdir()
    cache.parent.chmod(0o777)
    with pytest.raises(KernelError, match=f"others may write to {cache.parent} "):
        compile_twice()
    cache.parent.chmod(0o1777)
    assert compile_twice()(X).tolist() == [2, 4]


def test_a_cache_of_another_user_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may write there whenever they like."""
    cache.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(KernelError, match=f"{cache} belongs to user {owner}"):
        compile_twice()


def test_a_default_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked for it: the library is compiled for this process, with a warning."""
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "dlbridge").mkdir()
    (tmp_path / "dlbridge").chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to"):
        assert compile_twice()(X).tolist() == [2, 4]
    assert [*(tmp_path / "dlbridge").iterdir()] == []


def test_folders_and_libraries_of_the_cache_are_private(cache: Path) -> None:
    """Whatever the umask is, so that the next process finds them as they must be."""
    before = os.umask(0)
    try:
        compile_twice()
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(cache).stat().st_mode) == 0o700
    written = entry(cache).stat().st_ino
    compile_twice()
    assert entry(cache).stat().st_ino == written


MACHINES = {"x86_64": ("x86-64", "x86-64-v3"), "aarch64": ("armv8-a", "armv8.2-a+sve")}


def test_native_code_of_another_processor_is_not_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that several machines share holds libraries with instructions that one lacks."""
    if platform.machine() not in MACHINES:
        pytest.skip(f"the compiler's names of processors for {platform.machine()} are not known")
    compiler = tmp_path / "cc"
    found, *_ = compile_module._find_compiler(compile_module._C, None)
    compiler.write_text(
        "#!/usr/bin/env python3\n"
        "import os, sys\n"
        "native = '-march=' + open(sys.argv[0] + '.machine').read()\n"
        "found = [native if each == '-march=native' else each for each in sys.argv[1:]]\n"
        f"os.execvp({found!r}, ['cc', *found])\n"
    )
    compiler.chmod(0o755)
    entries = []
    for machine in MACHINES[platform.machine()]:
        (tmp_path / "cc.machine").write_text(machine)
        compile_module._target.cache_clear()  # another machine is another process
        flags = ["-DFACTOR=2", "-march=native"]
        dlbridge.compile_c(TWICE, "nothing", flags=flags, compiler=str(compiler))
        entries.append({path.name for path in cache.iterdir()})
    assert [len(each) for each in entries] == [1, 2]


HOMELESS = """
    import os, sys
    os.environ.pop("HOME", None)
    import pwd
    def nobody(uid):
        raise KeyError(uid)
    pwd.getpwuid = nobody  # as for the users that containers make up
    import dlbridge, numpy
    text, flags = open(sys.argv[1]).read(), ["-DFACTOR=2"]
    kernel = dlbridge.compile_c(text, "twice", sys.argv[2], flags=flags)
    assert kernel(numpy.array([1, 2], "f4")).tolist() == [2, 4]
"""


@pytest.mark.parametrize("xdg", ["", "relative"])
def test_no_home_is_needed(
    tmp_path: Path, run_python: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, xdg: str
) -> None:
    """Nor one that is given as a relative path, which the XDG standard says to ignore."""
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    (tmp_path / "temporary").mkdir()
    source = tmp_path / "twice.c"
    source.write_text(TWICE)
    done = run_python(
        HOMELESS, source, SCHEMA, XDG_CACHE_HOME=xdg, TMPDIR=str(tmp_path / "temporary")
    )
    done.check()
    assert [*(tmp_path / "temporary").iterdir()] == []  # the process has cleaned up


def test_a_relative_xdg_cache_home_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder may be anybody's."""
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    compile_twice()
    assert [*(tmp_path / "here").iterdir()] == []
    assert len([*(tmp_path / "home" / ".cache" / "dlbridge").iterdir()]) == 1


def test_a_forked_process_leaves_the_folder_of_its_parent(
    tmp_path: Path, run_python: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit removed it; and each has a folder of its own, whichever ends first."""
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    source = tmp_path / "twice.c"
    source.write_text(TWICE)
    code = """
        import os, sys, tempfile
        import dlbridge, numpy
        def make(factor):
            text, flags = open(sys.argv[1]).read(), [f"-DFACTOR={factor}"]
            schema = f"test::t{factor}(x: f32[n]) -> f32[n]"
            kernel = dlbridge.compile_c(text, "twice", schema, flags=flags)
            assert kernel(numpy.ones(1, "f4")).tolist() == [factor]
        make(2)
        folder = tempfile.gettempdir()
        (own,) = os.listdir(folder)
        child = os.fork()
        if child == 0:
            make(2)
            make(3)
            assert len(os.listdir(folder)) == 2
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.listdir(folder) == [own]
        assert len(os.listdir(os.path.join(folder, own))) == 1
        make(4)
    """
    (tmp_path / "temporary").mkdir()
    (tmp_path / "file").write_text("")
    run_python(
        code, source, XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path / "temporary")
    ).check()
    assert [*(tmp_path / "temporary").iterdir()] == []


# ---- file systems that are full, or from which nothing loads -------------------------------------


@pytest.fixture
def mounted(tmp_path: Path, run_python: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run(code, options, *arguments)`: as `run_python`, with a tmpfs of these options.

    The code gets the folder where it is mounted as its first argument. Needs no root, but a kernel
    that lets users mount in a namespace of their own.
    """
    folder = tmp_path / "mounted"
    folder.mkdir()
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = f'mount -t tmpfs -o mode=700,$0 tmpfs {folder} && exec "$@"'
    try:
        subprocess.run([*command, mount, "size=1M", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {error}")

    def run(code: str, options: str, *arguments: object, **env: str) -> Any:
        inside = """
            import subprocess, sys
            code, command, mount, options, *arguments = sys.argv[1:]
            run = [sys.executable, "-X", "faulthandler", "-c", code, *arguments]
            sys.exit(subprocess.run([*command.split(), mount, options, *run]).returncode)
        """
        code = textwrap.dedent(code)
        given = (" ".join(command), mount, options, folder, *arguments)
        return run_python(inside, code, *given, **env)

    return run


UNUSABLE = {
    "noexec": "is mounted noexec",
    "size=64k": "No space left on device",
    "size=2M,nr_inodes=3": "No space left on device",
    "size=2M,nr_inodes=1": "No space left on device",
}


@pytest.mark.fast(lambda options: options == "noexec")
@pytest.mark.parametrize("options", UNUSABLE)
def test_a_default_cache_without_room_or_execution_is_replaced(
    tmp_path: Path, mounted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """With one warning, and what was compiled there is found again by this process."""
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    code = """
        import os, subprocess, sys, warnings
        os.environ["XDG_CACHE_HOME"] = sys.argv[1]
        import dlbridge, numpy
        text = open(sys.argv[2]).read()
        def make():
            kernel = dlbridge.compile_c(text, "twice", sys.argv[3], flags=["-DFACTOR=2"])
            assert kernel(numpy.array([1, 2], "f4")).tolist() == [2, 4]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make()
            subprocess.run = None
            make()
        (warning,) = caught
        assert "is not used" in str(warning.message), warning.message
        assert sys.argv[4] in str(warning.message), warning.message
    """
    source = tmp_path / "twice.c"
    source.write_text(TWICE)
    mounted(code, options, source, SCHEMA, UNUSABLE[options]).check()


@pytest.mark.fast(lambda options: options == "noexec")
@pytest.mark.parametrize("options", UNUSABLE)
def test_a_cache_that_was_asked_for_without_room_or_execution_is_refused(
    tmp_path: Path, mounted: Callable[..., Any], options: str
) -> None:
    code = """
        import os, sys
        os.environ["DLBRIDGE_CACHE_DIR"] = sys.argv[1] + "/cache"
        import dlbridge, numpy
        text = open(sys.argv[2]).read()
        try:
            dlbridge.compile_c(text, "twice", flags=["-DFACTOR=2"])
        except dlbridge.KernelError as error:
            assert "compile_c: $DLBRIDGE_CACHE_DIR " in str(error), error
            assert sys.argv[3] in str(error), error
        else:
            raise AssertionError
    """
    source = tmp_path / "twice.c"
    source.write_text(TWICE)
    mounted(code, options, source, UNUSABLE[options]).check()


def test_temporary_folders_without_room_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no folder has room, all that were tried are named."""
    reserve = os.posix_fallocate

    def full(file: int, offset: int, size: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{file}")).is_relative_to(tmp_path / "full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, offset, size)

    for name in ("full", "large"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    bases = [str(tmp_path / "full"), str(tmp_path / "large")]
    monkeypatch.setattr(cache_module, "_ELSEWHERE", bases)
    monkeypatch.setattr(cache_module, "_OWN", {})
    with pytest.warns(UserWarning, match="No space left") as caught:
        assert compile_twice()(X).tolist() == [2, 4]
    assert [warning.filename for warning in caught] == [__file__]
    (own,) = (tmp_path / "large").iterdir()
    assert len(list(own.iterdir())) == 1
    cache_module._OWN.clear()
    bases.pop()
    with pytest.raises(KernelError, match=r"there is no folder .* with room.*No space left"):
        compile_twice("5")
    assert list((tmp_path / "full" / "dlbridge").iterdir()) == []


def test_a_pipe_in_the_place_of_a_library_is_replaced(
    cache: Path, run_python: Callable[..., Any]
) -> None:
    """To open it for writing would wait for a reader."""
    compile_twice()
    library = entry(cache)
    library.unlink()
    os.mkfifo(library)
    source = cache.parent / "twice.c"
    source.write_text(TWICE)
    code = """
        import sys, dlbridge
        dlbridge.compile_c(open(sys.argv[1]).read(), "twice", flags=["-DFACTOR=2"])
    """
    run_python(code, source, DLBRIDGE_CACHE_DIR=str(cache), timeout=60).check()
    assert library.is_file()


def test_load_library_refuses_a_pipe(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    """The loader would wait for a writer."""
    os.mkfifo(tmp_path / "pipe.so")
    code = """
        import sys, dlbridge
        try:
            dlbridge.load_library(sys.argv[1])
        except dlbridge.ArgumentError as error:
            assert "it is not a file" in str(error)
        else:
            raise AssertionError
    """
    run_python(code, tmp_path / "pipe.so", timeout=60).check()


def test_an_empty_home_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It meant "/", and root's libraries went to /.cache."""
    monkeypatch.delenv("DLBRIDGE_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    known = pwd.getpwuid(os.getuid())
    fields = [*known[:5], str(tmp_path / "home"), *known[6:]]
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(fields))
    compile_twice()
    assert len([*(tmp_path / "home" / ".cache" / "dlbridge").iterdir()]) == 1


def test_a_cache_behind_a_link_that_others_can_exchange_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is made where it leads."""
    (tmp_path / "open").mkdir()
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "open" / "link").symlink_to(tmp_path / "target")
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "open" / "link" / "cache"))
    with pytest.raises(KernelError, match=f"others may write to {tmp_path / 'open'} "):
        compile_twice()
    assert [*(tmp_path / "target").iterdir()] == []
    (tmp_path / "open").chmod(0o1777)
    assert compile_twice()(X).tolist() == [2, 4]
    assert len([*(tmp_path / "target" / "cache").iterdir()]) == 1
