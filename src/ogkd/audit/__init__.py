"""Is the data sound: counts, unreadable files, duplicates, patients across splits, labels."""

from ogkd.audit.check import NEAR, audit_data
from ogkd.audit.result import Audit, Case, Facts, Finding

__all__ = ["NEAR", "Audit", "Case", "Facts", "Finding", "audit_data"]
