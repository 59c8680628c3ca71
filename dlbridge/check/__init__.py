"""Tools that tell whether DLPack is obeyed, and what a producer really hands out."""

from dlbridge.check import faults
from dlbridge.check.diagnosis import Diagnosis, doctor
from dlbridge.check.inspection import CapsuleReport, Inspection, TableReport, inspect

__all__ = ["CapsuleReport", "Diagnosis", "Inspection", "TableReport", "doctor", "faults", "inspect"]
