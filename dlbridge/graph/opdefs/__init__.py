"""Declarations of op types, by family; `opdef.FAMILIES` names the modules."""
