"""Is the data what it seems to be: counts, unreadable files, duplicates, groups, labels."""

from ogkd.audit.check import NEAR, audit_data
from ogkd.audit.page import write_page
from ogkd.audit.result import Audit, Case, Facts, Finding

__all__ = ["NEAR", "Audit", "Case", "Facts", "Finding", "audit_data", "write_page"]
