"""The part that cffi generates: declarations of include/dlpack.h, and the cold C functions."""

from typing import Any

ffi: Any
lib: Any
