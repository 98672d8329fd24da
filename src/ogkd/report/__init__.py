"""A model on labelled images as one HTML page: summary, numbers, plots, mistakes, settings."""

from ogkd.report.build import report_page, write_report

__all__ = ["report_page", "write_report"]
