"""Is the data sound: counts, unreadable files, duplicates, patients across splits, labels."""

from ogkd.audit.check import NEAR, audit_data
from ogkd.audit.result import Audit, Facts, Finding, Occurrence

__all__ = ["NEAR", "Audit", "Facts", "Finding", "Occurrence", "audit_data"]
