from setuptools import find_packages, setup

# cffi's hook has no pyproject.toml spelling; include/ is installed as dlbridge/include.
setup(
    cffi_modules=["dlbridge/_core/build.py:FFI_BUILDER"],
    packages=[*find_packages(include=["dlbridge", "dlbridge.*"]), "dlbridge.include"],
    py_modules=["_dlbridge_pytest"],  # outside, so that pytest does not import dlbridge
    package_dir={"dlbridge.include": "include"},
)
