"""Seeded faults: each injects one defect into a machine, and a named check must detect it.

catalogue            reads definitions/*.yml; the result of every trial (faults.json)
trials               injects each fault on one machine, runs the checks, reverts it
"""

from gpu_ami.faults.catalogue import CleanProof, Fault, Record
from gpu_ami.faults.trials import FaultSession, NotRestoredError

__all__ = ["CleanProof", "Fault", "FaultSession", "NotRestoredError", "Record"]
