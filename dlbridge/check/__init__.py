"""Tools that tell whether DLPack is obeyed, and what a producer really hands out."""

from dlbridge.check.compatibility import Matrix, matrix
from dlbridge.check.diagnosis import Diagnosis, doctor
from dlbridge.check.inspection import CapsuleReport, Inspection, TableReport, inspect
from dlbridge.check.lifetimes import Entry, Ledger, Misuse, ledger

__all__ = [
    "CapsuleReport",
    "Diagnosis",
    "Entry",
    "Inspection",
    "Ledger",
    "Matrix",
    "Misuse",
    "TableReport",
    "doctor",
    "inspect",
    "ledger",
    "matrix",
]
