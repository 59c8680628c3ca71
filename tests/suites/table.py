"""The suites, and where they come from."""

from __future__ import annotations

from .runner import ROOT, Suite


def _checkout(repository: str) -> str:
    return f"git clone https://github.com/{repository} at that version"


SUITES = (
    Suite(
        "numpy",
        ("numpy",),
        ("_core/tests/test_dlpack.py",),
        "pip install numpy, whose wheels have their tests",
        package="numpy",
    ),
    Suite(
        "array-api-tests",
        ("numpy", "pytest-json-report", "ndindex"),
        ("array_api_tests/test_dlpack.py",),
        _checkout("data-apis/array-api-tests"),
        variables={"ARRAY_API_TESTS_MODULE": "numpy"},
    ),
    Suite(
        "jax",
        ("jax",),
        ("tests/array_interoperability_test.py", "tests/pytorch_interoperability_test.py"),
        _checkout("jax-ml/jax"),
        # All of the cases instead of ten, with 64-bit dtypes.
        variables={"JAX_NUM_GENERATED_CASES": "10000", "JAX_ENABLE_X64": "1"},
    ),
    Suite(
        "torch",
        ("torch", "expecttest"),
        ("test/test_dlpack.py",),
        _checkout("pytorch/pytorch"),
    ),
    Suite(
        "tvm-ffi",
        ("apache-tvm-ffi",),
        tuple(f"tests/python/test_{name}.py" for name in ("tensor", "container_dlpack_conversion")),
        _checkout("apache/tvm-ffi"),
        tested=("f", "f[a-z_]*", "tvm_ffi.convert"),
    ),
    Suite(
        "nanobind",
        (),
        ("test_ndarray.py",),
        _checkout("wjakob/nanobind")
        + ", build its tests (cmake -S . -B build; cmake --build build)",
        tested=("t.*",),
    ),
    Suite(
        "mpi4py",
        ("mpi4py",),
        ("test/test_msgspec.py",),
        _checkout("mpi4py/mpi4py"),
        tested=("Sendrecv", "Alltoall*", "self.COMM.*"),
        without=("cupy", "numba"),
    ),
    Suite(
        "pyarrow",
        ("pyarrow",),
        ("tests/test_dlpack.py",),
        "pip install pyarrow, whose wheels have their tests",
        package="pyarrow",
    ),
    Suite(
        "dpnp",
        ("dpnp",),
        ("tests/tensor/test_usm_ndarray_dlpack.py", "tests/test_dlpack.py"),
        "pip install dpnp, whose wheels have their tests",
        package="dpnp",
        environment=".venv-dpnp",
        variables={  # as for make test-dpnp
            "LD_LIBRARY_PATH": str(ROOT / ".venv-dpnp/lib"),
            "OCL_ICD_FILENAMES": str(ROOT / ".venv-dpnp/lib/libintelocl.so"),
        },
    ),
    Suite(
        "tensorflow",
        ("tensorflow-cpu",),
        ("tensorflow/python/dlpack/dlpack_test.py",),
        _checkout("tensorflow/tensorflow"),
    ),
    Suite(
        "tvm",
        ("apache-tvm",),
        (
            "tests/python/contrib/test_dlpack.py",
            "tests/python/relax/test_dlpack_integration.py",
            "tests/python/runtime/test_runtime_dlpack.py",
        ),
        _checkout("apache/tvm"),
    ),
    Suite(
        "cupy",
        ("cupy-cuda12x",),
        ("tests/cupy_tests/core_tests/test_dlpack.py",),
        _checkout("cupy/cupy"),
    ),
)

# JAX sees the GPU here, and no module is kept from a suite.
_ON_GPU = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

GPU_SUITES = (
    Suite(
        "tvm-ffi",
        ("apache-tvm-ffi", "torch"),
        tuple(
            f"tests/python/test_{name}.py"
            for name in ("current_work_stream_gpu", "dlpack_exchange_api", "stream")
        ),
        _checkout("apache/tvm-ffi"),
        tested=("f", "f[a-z_]*", "tvm_ffi.convert"),
        variables=_ON_GPU,
    ),
    Suite(
        "cupy",
        ("cupy-cuda13x",),
        tuple(
            f"tests/cupy_tests/core_tests/test_{name}.py"
            for name in ("dlpack", "ndarray_cuda_array_interface")
        ),
        _checkout("cupy/cupy"),
        tested=("cupy.asarray", "cupy.array"),
        variables=_ON_GPU,
    ),
    Suite(
        "torch",
        ("torch", "expecttest"),
        ("test/test_dlpack.py",),
        _checkout("pytorch/pytorch"),
        variables=_ON_GPU,
    ),
    Suite(
        "jax",
        ("jax", "absl-py"),
        ("tests/pytorch_interoperability_test.py", "tests/array_interoperability_test.py"),
        _checkout("jax-ml/jax"),
        variables={**_ON_GPU, "JAX_NUM_GENERATED_CASES": "10", "JAX_ENABLE_X64": "1"},
    ),
    Suite(
        "cuda-core",
        ("cuda-core",),
        tuple(
            f"tests/{name}.py"
            for name in ("test_utils", "graph/test_capture_alloc", "memory_ipc/test_event_ipc")
        ),
        _checkout("NVIDIA/cuda-python") + ", its folder cuda_core",
        tested=("StridedMemoryView*",),
        variables=_ON_GPU,
    ),
)
