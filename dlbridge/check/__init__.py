"""Tools that tell whether DLPack is obeyed, and what a producer really hands out."""

from dlbridge.check.inspection import CapsuleReport, Inspection, TableReport, inspect

__all__ = ["CapsuleReport", "Inspection", "TableReport", "inspect"]
