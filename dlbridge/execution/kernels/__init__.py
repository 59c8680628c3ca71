"""Kernels of operations, by family; `registry.FAMILIES` names the modules."""
