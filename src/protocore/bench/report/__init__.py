"""`protocore report`: stored runs as one page of HTML that needs no network."""

from protocore.bench.report.page import report

__all__ = ["report"]
