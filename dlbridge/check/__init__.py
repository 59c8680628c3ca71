"""Tools that tell whether DLPack is obeyed, and what a producer really hands out."""

from dlbridge.check import faults
from dlbridge.check.conformance import Report, Verdict, check_consumer, check_producer
from dlbridge.check.diagnosis import Diagnosis, doctor
from dlbridge.check.inspection import CapsuleReport, Inspection, TableReport, inspect
from dlbridge.check.rules import Rule, rules

__all__ = [
    "CapsuleReport",
    "Diagnosis",
    "Inspection",
    "Report",
    "Rule",
    "TableReport",
    "Verdict",
    "check_consumer",
    "check_producer",
    "doctor",
    "faults",
    "inspect",
    "rules",
]
