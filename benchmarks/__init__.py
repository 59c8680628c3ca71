"""Measure dlbridge against the frameworks' own functions: `python -m benchmarks exchange`."""

import importlib
import importlib.util

if importlib.util.find_spec("triton"):  # which aborts the process when it follows tensorflow
    importlib.import_module("triton")
