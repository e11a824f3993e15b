"""Figures and pages from tidy tables, whoever made them."""

from __future__ import annotations

from normless.report.accuracy import accuracy_against_depth as accuracy_against_depth
from normless.report.page import Column as Column
from normless.report.page import Figure as Figure
from normless.report.page import Page as Page
from normless.report.page import Table as Table
from normless.report.page import render_page as render_page
from normless.report.page import write_page as write_page
from normless.report.save import inline_svg as inline_svg
from normless.report.save import save_png as save_png
from normless.report.save import save_svg as save_svg
from normless.report.skip_variance import skip_variance_against_block as skip_variance_against_block
