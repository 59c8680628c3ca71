"""Load the native module: `ffi` and `lib` from cffi, `native` with the CPython types.

Both live in one shared object. The second module is found by the name of its entry point
(`PyInit__native`) in the file of the first.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

if sys.byteorder != "little":
    raise ImportError(
        f"dlbridge needs a little-endian processor, and this one is {sys.byteorder}-endian: "
        "DLPack says nothing of the order of bytes, and tensors in files are shared as they are"
    )

try:
    from dlbridge._core import _cffi as _cffi
except ImportError as error:
    if "subinterpreters" in str(error):  # with a GIL of its own, Python itself refuses
        raise ImportError(
            f"dlbridge does not support subinterpreters ({error}); import it in the main "
            'interpreter, or use processes (multiprocessing, with "spawn")'
        ) from error
    _there = sorted(path.name for path in Path(__file__).parent.glob("_cffi*.so"))
    raise ImportError(
        f"dlbridge: this Python cannot load the native module ({error}): it needs "
        f"_cffi{EXTENSION_SUFFIXES[0]}, and there is {', '.join(_there) or 'none'}; install "
        "dlbridge again with this Python"
    ) from error

if TYPE_CHECKING:
    from dlbridge._core import _native as native
else:
    _name = f"{__name__}._native"
    _spec = ModuleSpec(_name, ExtensionFileLoader(_name, _cffi.__file__), origin=_cffi.__file__)
    native = module_from_spec(_spec)
    _spec.loader.exec_module(native)
    native.check_interpreter()
    sys.modules[_name] = native

ffi = _cffi.ffi
lib = _cffi.lib
