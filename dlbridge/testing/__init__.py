"""Tools for tests of kernels: one call that checks an operator in every installed framework."""

from dlbridge.testing.checking import CheckRow, KernelReport, check_kernel

__all__ = ["CheckRow", "KernelReport", "check_kernel"]
