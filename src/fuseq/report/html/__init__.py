"""The HTML report: one self-contained file from one document."""

from fuseq.report.html.page import render, write_report

__all__ = ["render", "write_report"]
