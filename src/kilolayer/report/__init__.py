"""What people see: the same verdict and the same pictures in a terminal, in HTML, in a PNG and as JSON.

Every renderer reads :class:`RunView` and nothing else. Plotly, Jinja2 and matplotlib (extra ``report``) are
imported when a report is made, not before.
"""

from kilolayer.report.encode import to_json, to_plain
from kilolayer.report.follow import Glance, RunFollower
from kilolayer.report.frame import render_frame
from kilolayer.report.html import render_html
from kilolayer.report.live import LiveView
from kilolayer.report.load import load_report
from kilolayer.report.markdown import render_markdown, to_markdown
from kilolayer.report.page import MAX_DRAWN_RUNS
from kilolayer.report.png import draw_png, save_png
from kilolayer.report.renderers import RENDERERS, Renderer, Report, save_report
from kilolayer.report.run_folder import find_runs, load_run, load_runs
from kilolayer.report.screen import render_screen
from kilolayer.report.sentence import verdict_sentence
from kilolayer.report.sparkline import sparkline
from kilolayer.report.table import render_table, to_text
from kilolayer.report.terminal import render_depth, render_runs, render_verdict
from kilolayer.report.text import format_number, format_range, format_value, inert, to_html
from kilolayer.report.trial import TrialView
from kilolayer.report.view import Prediction, RunView
from kilolayer.report.watch import watch_run

__all__ = [
    "MAX_DRAWN_RUNS",
    "RENDERERS",
    "Glance",
    "LiveView",
    "Prediction",
    "Renderer",
    "Report",
    "RunFollower",
    "RunView",
    "TrialView",
    "draw_png",
    "find_runs",
    "format_number",
    "format_range",
    "format_value",
    "inert",
    "load_report",
    "load_run",
    "load_runs",
    "render_depth",
    "render_frame",
    "render_html",
    "render_markdown",
    "render_runs",
    "render_screen",
    "render_table",
    "render_verdict",
    "save_png",
    "save_report",
    "sparkline",
    "to_html",
    "to_json",
    "to_markdown",
    "to_plain",
    "to_text",
    "verdict_sentence",
    "watch_run",
]
