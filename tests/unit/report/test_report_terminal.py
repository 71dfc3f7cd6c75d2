"""The terminal's verdict and tables: 80 columns, no color needed, no markup read from names."""

import io

import numpy as np
import pytest
from report_runs import HOSTILE, empty, exploding, finding, healthy, hostile, vanishing
from rich.console import Console
from rich.text import Text

from kilolayer.report import render_depth, render_runs, render_table, render_verdict, sparkline, to_text
from kilolayer.report.sparkline import BARS, TO_ASCII

VERDICT = """\
error SIG101  init-too-small        blocks.0:sum to blocks.7:sum
  The signal shrinks 0.707x per block.
  Measured 0.707, predicted 1.00 (RMS ratio of neighboring blocks).
  Not lr-too-high (step 0 shows it), not inputs-unscaled (RMS 1.0).
  Remedy: Draw weights with std sqrt(2 / fan_in).
  More: kilolayer explain SIG101       Report: runs/check-1/report.html"""


def printed(renderable, *, width=80, color=None, encoding="utf-8"):
    """What a console of this width and kind gets, byte for byte."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = Console(file=stream, width=width, color_system=color, force_terminal=color is not None)
    console.print(renderable)
    return raw.getvalue().decode(encoding)


def test_the_verdict_is_one_screen_with_the_sentence_first():
    verdict = render_verdict(finding(), explain=True, report="runs/check-1/report.html")
    assert verdict.plain == VERDICT
    assert printed(verdict) == VERDICT + "\n"


def test_nothing_points_to_what_does_not_exist():
    text = render_verdict(finding()).plain
    assert "explain" not in text
    assert "Report" not in text


def test_parts_a_finding_lacks_leave_no_empty_line():
    bare = finding(measured=None, predicted=None, rivals=(), remedy="", first_site=None, last_site=None)
    assert render_verdict(bare).plain == "error SIG101  init-too-small\n  The signal shrinks 0.707x per block."
    assert "Measured 0.707 (RMS" in render_verdict(finding(predicted=None)).plain


def test_consequences_are_named_once():
    folded = (finding(code="GRD201", cause="skip-missing"), finding(code="GRD201", cause="skip-missing"))
    assert "Explains also: GRD201 skip-missing." in render_verdict(finding().with_consequences(folded)).plain


def test_a_healthy_run_gets_one_line():
    line = render_verdict(None, examined="64 blocks over 300 steps", seconds=3.21, report="r.html")
    assert line.plain == "ok  Nothing stands out in 64 blocks over 300 steps (3.21 s).  Report: r.html"
    assert render_verdict(None).plain == "ok  Nothing stands out."


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_wrap_under_an_indent(width):
    long = finding(message="The signal shrinks. " * 20, first_site="encoder." * 30 + "norm")
    lines = render_verdict(long, width=width).plain.split("\n")
    assert max(len(line) for line in lines) <= width
    assert all(line.startswith("  ") and line == line.rstrip() for line in lines[1:])


def test_severity_is_a_word_and_color_only_adds_to_it():
    for severity in ("error", "warning", "info"):
        verdict = render_verdict(finding(severity=severity))
        assert verdict.plain.startswith(severity)
        assert "\x1b[" in printed(verdict, color="standard")
        assert "\x1b" not in printed(verdict)


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    Console(file=stream, width=80, force_terminal=True, color_system="standard").print(render_verdict(finding()))
    assert "\x1b[31m" not in stream.getvalue()
    assert "\x1b[1;31m" not in stream.getvalue()


def test_verdicts_can_be_put_together_with_other_text():
    whole = Text.assemble(("prenorm", "bold"), "\n", render_verdict(None))
    assert whole.plain == "prenorm\nok  Nothing stands out."


@pytest.mark.parametrize("render", [lambda run: render_verdict(run.root), render_depth, lambda run: render_runs([run])])
def test_hostile_names_change_nothing_in_the_terminal(render):
    colored = printed(render(hostile()), color="standard")
    assert not any(character in colored for character in "\x07\u202e\u2066\u200b")
    assert "\x1b[31mred" not in colored
    assert "]0;title" not in colored.replace("\\x1b]0;title", "")
    assert max(len(line) for line in printed(render(hostile())).splitlines()) <= 80


def test_markup_and_emoji_codes_in_a_table_are_text():
    text = to_text(render_table(["[bold]name[/bold]"], [["[red]x[/red] :smile:"]], title="[b]t[/b]", caption=":tada:"))
    for part in ("[bold]name[/bold]", "[red]x[/red] :smile:", "[b]t[/b]", ":tada:"):
        assert part in text


def test_a_table_shows_compact_numbers_aligned_right():
    table = render_table(
        ["wiring", "std", "gradient"],
        [["plain-naive", 7.21e-10, "0.21-0.35"], ["prenorm", 1.46, None]],
        title="Step 0",
        caption="5 seeds",
    )
    assert to_text(table) == (
        "Step 0\n"
        "wiring           std   gradient\n"
        "───────────────────────────────\n"
        "plain-naive  7.2e-10  0.21-0.35\n"
        "prenorm         1.46          -\n"
        "5 seeds\n"
    )


def test_a_wide_table_is_split_and_repeats_its_first_column():
    header = ["wiring", *(f"block {index}" for index in range(12))]
    text = to_text(render_table(header, [["plain-naive", *(f"{index}.0e-10" for index in range(12))]]), width=60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert text.count("plain-naive") == 3
    assert [line for line in text.splitlines() if "5.0e-10" in line] != []
    assert all(f"{index}.0e-10" in text for index in range(12))
    assert all(f"block {index}" in text for index in range(12))


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_number_is_ever_broken(width):
    rows = [["encoder.layers.0.self_attn.out_proj.weight", *(1.5e-10 for _ in range(9))] for _ in range(3)]
    text = to_text(render_table(["site", *("value",) * 9], rows), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert text.count("1.5e-10") == 27


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="3 cells but the header 2"):
        render_table(["a", "b"], [[1, 2, 3]])


def test_an_empty_table_has_its_header():
    assert to_text(render_table(["a", "b"], [])).splitlines()[0].split() == ["a", "b"]


def test_depth_is_shown_with_theory_and_nonfinite_marks():
    text = to_text(render_depth(healthy()))
    assert text.splitlines()[2].startswith("Activation RMS  theory")
    assert "step 0" in text
    assert "step 4" in text
    exploded = [line for line in to_text(render_depth(exploding())).splitlines() if "step 4" in line]
    assert "xxxx" in exploded[0]
    assert exploded[0].endswith("1.0-8.0")
    assert exploded[1].endswith("no finite value")
    assert to_text(render_depth(empty())).count("not recorded") == 3
    assert "1.0e-30 to 1.0" in to_text(render_depth(vanishing()))


def test_each_block_has_one_mark_however_many_matrices_it_holds():
    one = [line.split("  ")[2] for line in to_text(render_depth(healthy())).splitlines() if "Gradient" in line]
    three = to_text(render_depth(healthy(weights_per_block=3))).splitlines()
    assert one == [line.split("  ")[2] for line in three if "Gradient" in line]


def test_a_console_without_unicode_gets_ascii():
    text = printed(render_depth(exploding()), encoding="ascii")
    assert "Activation RMS  step 0  _.-~=+*#         1.0-128" in text
    assert "Activation RMS  step 4  ____xxxx" not in text


def test_runs_are_listed_with_their_cause():
    lines = to_text(render_runs([healthy("a"), exploding("b"), empty("c")], title="Training")).splitlines()
    assert lines[0] == "Training"
    assert [line.split()[0] for line in lines[3:]] == ["a", "b", "c"]
    assert [line.split("  ")[-1].strip() for line in lines[3:]] == ["none", "norm-missing", "not evaluated"]


def test_sparklines_follow_the_curve():
    assert sparkline(np.arange(8.0)) == BARS
    assert sparkline(np.arange(8.0)[::-1]) == BARS[::-1]
    assert sparkline(np.zeros(0)) == ""
    assert sparkline(np.full(3, np.nan)) == "   "
    assert sparkline(np.array([0.0, np.nan, 7.0])) == "▁ █"
    assert sparkline(np.array([0.0, 1.0, 7.0]), np.array([False, True, False])) == "▁x█"
    assert sparkline(np.array([np.inf, -np.inf])) == "xx"
    assert sparkline(np.array([1.0])) in BARS


def test_a_flat_curve_with_noise_looks_flat():
    noise = np.random.default_rng(0).normal(0, 0.01, 32)
    assert set(sparkline(noise)) <= set("▄▅")


def test_a_long_curve_keeps_its_spike_and_its_nonfinite_value():
    curve = np.zeros(1000)
    curve[503] = 9.0
    line = sparkline(curve, np.arange(1000) == 777, width=20)
    assert len(line) == 20
    assert line[10] == "█"
    assert line[15] == "x"
    assert line.translate(TO_ASCII).isascii()


def test_exceptional_kinds_of_cells_are_inert_too():
    assert "\x1b" not in to_text(render_table([HOSTILE], [[[HOSTILE, 1.0]]]))


def test_a_split_table_repeats_every_key_and_fills_its_parts_alike():
    header = ["wiring", "lr", *(f"column {index}" for index in range(6))]
    rows = [["prenorm", lr, *range(6)] for lr in ("0.05", "0.005")]
    text = to_text(render_table(header, rows, num_keys=2), width=60)
    parts = text.split("\n\n")
    assert len(parts) == 2
    assert [part.splitlines()[0].count("column") for part in parts] == [3, 3]
    assert all(part.count("prenorm  ") == 2 and part.count("0.005") == 1 for part in parts)
    joined = " ".join(part.splitlines()[0] for part in parts)
    assert [name for name in header[2:] if joined.count(name) != 1] == []


@pytest.mark.parametrize("num_keys", [0, 3])
def test_keys_are_some_of_the_columns(num_keys):
    with pytest.raises(ValueError, match=f"num_keys must lie in 1 to 2, the number of columns, got {num_keys}"):
        render_table(["a", "b"], [], num_keys=num_keys)


@pytest.mark.parametrize(("header", "num_keys"), [(["a"], 1), (["a", "b"], 2)])
def test_a_table_of_keys_alone_is_whole(header, num_keys):
    assert (
        to_text(render_table(header, [["x"] * len(header)], num_keys=num_keys)).splitlines()[-1].split()
        == ["x"] * num_keys
    )
