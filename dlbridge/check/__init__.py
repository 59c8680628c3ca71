"""Tools that check whether DLPack is obeyed, and show what a producer really hands out."""

from dlbridge.check import faults
from dlbridge.check.compatibility import Matrix, matrix
from dlbridge.check.conformance import Report, Verdict, check_consumer, check_producer
from dlbridge.check.diagnosis import Diagnosis, doctor
from dlbridge.check.inspection import CapsuleReport, Inspection, TableReport, inspect
from dlbridge.check.lifetimes import Entry, Ledger, Misuse, ledger
from dlbridge.check.rules import Rule, rules

__all__ = [
    "CapsuleReport",
    "Diagnosis",
    "Entry",
    "Inspection",
    "Ledger",
    "Matrix",
    "Misuse",
    "Report",
    "Rule",
    "TableReport",
    "Verdict",
    "check_consumer",
    "check_producer",
    "doctor",
    "faults",
    "inspect",
    "ledger",
    "matrix",
    "rules",
]
