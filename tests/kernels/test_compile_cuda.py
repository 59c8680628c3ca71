"""compile_cuda without a GPU: what compiles, for which devices, what is kept, what is said."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.cuda import nvrtc
from dlbridge.errors import ArgumentError, KernelError
from dlbridge.kernels import cuda_source

SOURCE = """
extern "C" __global__ void scale(const float *x, float *out, float by, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = by * x[i];  // launched with (n + 255) / 256 blocks
}
template <typename T> __global__ void copy(const T *x, T *out, long long n) { out[0] = x[0]; }
namespace mine {
__global__ void __launch_bounds__(256) plain(const float *__restrict__ x, float *out, unsigned n) {
    out[0] = x[0] * n;
}
}
"""
SCHEMA = "test::scale(x: f32[n], *, by: float) -> f32[n]"
COPY = "test::copy(x: f32[n]) -> f32[n]"
ABI = "void(const float *x, float *out, float by, int64_t n)"
GRID: dict[str, Any] = {"grid": "(n + 255) // 256", "block": 256}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a cache of its own, and no GPU; without NVRTC skip it."""
    try:
        nvrtc.open_nvrtc()
    except KernelError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_source, "_MODULES", {})
    monkeypatch.setattr(cuda_source, "is_available", lambda: False)
    return tmp_path / "cache"


def kernel(
    name: str = "scale", schema: str = SCHEMA, abi: str | None = None, **options: Any
) -> dlbridge.Kernel:
    source = options.pop("source", SOURCE)
    return dlbridge.compile_cuda(source, name, schema, abi, **{**GRID, **options})


def refusal(kind: type[Exception], *arguments: Any, **options: Any) -> str:
    with pytest.raises(kind, match=r"^compile_cuda: ") as refused:
        kernel(*arguments, **options)
    return str(refused.value)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Return a function that gives this machine devices of some architectures."""

    def pretend(names: list[str]) -> None:
        found = [nvrtc.read_architecture(name) for name in names]
        monkeypatch.setattr(cuda_source, "is_available", lambda: True)
        monkeypatch.setattr(cuda_source, "driver_version", lambda: (99, 0))
        monkeypatch.setattr(cuda_source, "device_architecture", found.__getitem__)

    return pretend


def test_text_becomes_a_kernel_for_gpus() -> None:
    """Its signature is read from the text, whose `long long` takes the dimension."""
    made = kernel(cost="n", shared="4 * n")
    assert repr(made) == f"<dlbridge.Kernel {SCHEMA}: a function of a CUDA module for cuda>"
    assert made.functions["cuda"].abi == "void(const float *x, float *out, float by, long long n)"
    with pytest.raises(
        dlbridge.DLBridgeError, match=r"expected f32\[n\] on a device that the kernel"
    ):
        made(np.ones(3, "float32"), by=2.0)


def test_names_of_cpp_are_resolved() -> None:
    """Kernels in namespaces, without extern "C", and of templates."""
    assert kernel("mine::plain", COPY).functions["cuda"].name == "_ZN4mine5plainEPKfPfj"
    abi = "void(const float *x, float *out, int64_t n)"
    assert kernel("copy<float>", COPY, abi).functions["cuda"].name == "_Z4copyIfEvPKT_PS0_x"
    half = "void(const uint16_t *x, uint16_t *out, int64_t n)"
    assert kernel("copy<short>", "test::copy(x: f16[n]) -> f16[n]", half) is not None


def test_without_a_name_all_kernels_are_a_module() -> None:
    module = dlbridge.compile_cuda(SOURCE)
    assert isinstance(module, dlbridge.cuda.Module)
    assert repr(module) == "Module of scale, copy, plain"
    assert module["scale"].parameters == (("u", 8), ("u", 8), ("f", 4), ("u", 8))
    both = dlbridge.wrap(module["scale"], SCHEMA, **GRID)
    assert both.functions["cuda"].abi == module["scale"].signature
    with pytest.raises(ArgumentError, match="has no kernel 'scales'; did you mean 'scale'"):
        module["scales"]
    with pytest.raises(ArgumentError, match="need the name of a kernel"):
        dlbridge.compile_cuda(SOURCE, schema=SCHEMA)  # type: ignore[call-overload]


def test_kernels_of_one_text_share_its_module() -> None:
    first, again = dlbridge.compile_cuda(SOURCE), dlbridge.compile_cuda(SOURCE)
    assert first is again
    assert first is not dlbridge.compile_cuda(SOURCE, flags=["--use_fast_math"])


def test_headers_of_integers_and_of_cuda_can_be_included() -> None:
    source = """
    #include <stdint.h>
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void f(const __half *x, const __nv_bfloat16 *y, __half *out, int64_t n) {}
    """
    schema = "test::f(x: f16[n], y: bf16[n]) -> f16[n]"
    if not nvrtc.open_nvrtc().include:
        pytest.skip("the headers of CUDA are not installed")
    assert kernel("f", schema, source=source) is not None
    text = refusal(ArgumentError, "f", "test::f(x: f32[n], y: bf16[n]) -> f16[n]", source=source)
    assert "does not point to f32[n]" in text


def test_a_changed_file_that_the_text_includes_is_noticed(tmp_path: Path) -> None:
    source = '#include "own.h"\n__global__ void f(int *out) { *out = NUMBER; }'
    made = []
    for number in (4711, 4711, 1234):
        (tmp_path / "own.h").write_text(f"#define NUMBER {number}")
        made.append(dlbridge.compile_cuda(source, flags=[f"-I{tmp_path}"]))
    first, again, other = made
    assert first is again
    assert b"4711" in first._first.ptx
    assert b"1234" in other._first.ptx


# ---- architectures -------------------------------------------------------------------------------


def test_an_architecture_is_compiled_to_its_code_and_to_ptx(
    devices: Callable[[list[str]], None],
) -> None:
    """The machine code is for devices of the same generation, the PTX for newer ones."""
    devices(["sm_80", "sm_86", "sm_90", "sm_75"])
    module = dlbridge.compile_cuda(SOURCE, arch="sm_80")
    assert module.image(0)[:4] == module.image(1)[:4] == b"\x7fELF"
    assert b".target sm_80" in module.image(2)
    with pytest.raises(ArgumentError, match="arch='sm_80' is newer than cuda:3, which is sm_75"):
        module.image(3)
    assert b".target sm_80" in dlbridge.compile_cuda(SOURCE, arch="compute_80").image(0)
    exact = dlbridge.compile_cuda(SOURCE, arch="sm_90a")
    assert exact.image(2)[:4] == b"\x7fELF"


def test_each_device_has_code_of_its_own_architecture(
    devices: Callable[[list[str]], None],
) -> None:
    devices(["sm_90", "sm_75", "sm_999", "sm_61"])
    module = dlbridge.compile_cuda(SOURCE)
    images = [module.image(device) for device in range(3)]
    assert [image[:4] == b"\x7fELF" for image in images] == [True, True, False]
    assert images[0] != images[1]
    newest = max(nvrtc.open_nvrtc().architectures)
    assert f".target sm_{newest}".encode() in images[2], "PTX, which that driver compiles"
    with pytest.raises(ArgumentError, match="and newer, and the device is sm_61"):
        module.image(3)


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ("90", "arch must be an architecture such as 'sm_90' or 'compute_80', got '90'"),
        (90, "arch must be an architecture such as 'sm_90' or 'compute_80', got 90"),
        ("sm_12", "does not compile for sm_12; it does for "),
    ],
)
def test_other_architectures_are_refused(arch: Any, said: str) -> None:
    assert said in refusal(ArgumentError, arch=arch)


# ---- refusals ------------------------------------------------------------------------------------


def test_a_mistake_is_shown_with_its_line() -> None:
    source = "\n\n__global__ void f(float *x) { x[0] = hlper(x[1]); }\n"
    text = refusal(ArgumentError, "f", source=source)
    assert "NVRTC" in text
    assert 'source.cu(3): error: identifier "hlper" is undefined' in text


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_function_that_nothing_defines_is_named_with_its_lines(arch: str) -> None:
    source = (
        "namespace a { __device__ float helper(float); }  /* helper\nhelper */ // helper\n"
        "__global__ void f(float *x) {\n    x[0] = a::helper(x[1]);\n}\n"
    )
    text = refusal(ArgumentError, "f", source=source, arch=arch)
    assert text == ("compile_cuda: line 1, 4 of the source uses 'helper', which nothing defines")


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("__global__ void f(int64_t *x) {}", "the source lacks #include <stdint.h>"),
        ('#include "dlbridge_kernel.h"', "dlbridge_kernel.h is for functions of the host"),
        ("#include <curand_nothing.h>", "the headers of CUDA are not here"),
    ],
)
def test_what_is_missing_in_a_source_is_advised(source: str, advice: str) -> None:
    assert advice in refusal(ArgumentError, source=source)


@pytest.mark.parametrize(
    ("name", "abi", "said"),
    [
        ("scael", None, "the source has no kernel 'scael'; did you mean 'scale'?"),
        ("grep", None, "the source has no kernel 'grep'; it has scale, copy, plain"),
        ("copy", ABI, "cannot determine which instance of function template"),
        ("copy<flaot>", ABI, 'identifier "flaot" is undefined'),
        ("copy<float>", None, "needs its C signature with the names of the schema"),
        ("scale", ABI.replace("float by", "double by"), "the kernel was compiled with 4 param"),
        ("scale", ABI.replace(", int64_t n", ""), "64-bit integer or address, 32-bit float, 64"),
        ("scale", ABI.replace("float *", "double *"), "does not point to f32[n]"),
        ("scale", ABI.replace("const float *x", "const float *y"), "'y' means nothing here"),
    ],
)
def test_other_kernels_and_parameters_are_refused(name: str, abi: str | None, said: str) -> None:
    assert said in refusal(ArgumentError, name, abi=abi)


def test_pointers_are_those_of_the_source() -> None:
    """The schema and the abi agree, and the text has another element type."""
    abi = ABI.replace("float *", "double *")
    text = refusal(ArgumentError, "scale", SCHEMA.replace("f32", "f64"), abi)
    assert "'x' is 'const double *', and in the source it is 'const float *'" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"flags": ["-arch=sm_90"]}, "'-arch=sm_90' is what arch= is for"),
        ({"flags": ["--gpu-architecture", "sm_90"]}, "is what arch= is for"),
        ({"flags": ["--nothing"]}, "does not take an option of flags=: nvrtc: error"),
        ({"flags": "-G"}, "flags must be a list of strings, got '-G'"),
        ({"source": 3}, "source must be text, got int"),
        ({"source": "a\0b"}, "source must be text without NUL"),
        ({"source": "\ud800"}, "source must be text without NUL and lone surrogates"),
        ({"name": b"scale"}, "name must be text, got bytes"),
        ({"abi": 3}, "abi must be text, got int"),
        ({"grid": None}, "needs grid= and block="),
        ({"constants": {"N": 3}}, "constants= are of Triton kernels"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    assert said in refusal(ArgumentError, **arguments)


def test_a_misspelt_option_is_refused_as_by_python() -> None:
    with pytest.raises(TypeError, match=r"^compile_cuda\(\) got .* 'vpj'; did you mean 'vjp'\?"):
        kernel(vpj=3)


def test_where_nvrtc_cannot_be_loaded_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLBRIDGE_NVRTC", "/nowhere/libnvrtc.so")
    text = refusal(KernelError)
    assert text.startswith("compile_cuda: $DLBRIDGE_NVRTC cannot be loaded: /nowhere/libnvrtc.so")
    monkeypatch.delenv("DLBRIDGE_NVRTC")
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["/nowhere/libnvrtc.so"]))
    assert "`pip install nvidia-cuda-nvrtc`, or say where it is" in refusal(KernelError)


def test_code_that_an_old_driver_does_not_take_is_not_compiled(
    devices: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices(["sm_90"])
    monkeypatch.setattr(cuda_source, "driver_version", lambda: (9, 2))
    assert "the driver takes code of CUDA 9 and older, and here is NVRTC" in refusal(KernelError)


# ---- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what was compiled, as it grows."""
    found: list[str] = []
    compile_here = nvrtc.Nvrtc.compile

    def compile_and_note(self: Any, source: str, *arguments: Any) -> Any:
        found.append(source)
        return compile_here(self, source, *arguments)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", compile_and_note)
    return found


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be as another process, which finds the cache alone."""
    monkeypatch.setattr(cuda_source, "_MODULES", {})


def test_what_was_compiled_is_found_by_other_processes(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"mine::plain": COPY, "scale": SCHEMA}
    first = {name: kernel(name, schema).functions["cuda"].name for name, schema in names.items()}
    assert len(compilations) == 2, "the text, and with the name of a kernel of C++"
    forget(monkeypatch)
    assert first == {
        name: kernel(name, schema).functions["cuda"].name for name, schema in names.items()
    }
    assert len(compilations) == 2
    assert {path.suffix for path in cache.iterdir()} == {".ptx", ".cubin", ".symbol", ".log"}
    kernel(flags=["-DN=1"])
    kernel(arch="sm_90")
    assert len(compilations) == 4


def test_a_damaged_entry_is_compiled_again(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dlbridge.compile_cuda(SOURCE, arch="sm_90")._first.cubin  # type: ignore[attr-defined]
    for path in cache.glob("*.cubin"):
        os.truncate(path, 100)
    forget(monkeypatch)
    again = dlbridge.compile_cuda(SOURCE, arch="sm_90")._first.cubin  # type: ignore[attr-defined]
    assert again == whole
    assert len(compilations) == 2


def test_warnings_are_those_of_python_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "__global__ void f(float *x) { int unused; x[0] = 1; }"
    for _ in range(2):
        with pytest.warns(UserWarning, match='variable "unused" was declared') as warned:
            dlbridge.compile_cuda(source)
        assert warned[0].filename == __file__
        forget(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dlbridge.compile_cuda(SOURCE)


def test_a_cache_that_others_can_write_to_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    assert "$DLBRIDGE_CACHE_DIR is not used, because" in refusal(KernelError)
