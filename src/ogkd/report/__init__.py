"""Self-contained HTML pages: a report about a model on labelled images, and the data check."""

from ogkd.report.data_page import data_check_page, write_data_check
from ogkd.report.model_page import write_report

__all__ = ["data_check_page", "write_data_check", "write_report"]
