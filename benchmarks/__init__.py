"""Measure dlbridge against the frameworks' own functions: `python -m benchmarks exchange`."""
