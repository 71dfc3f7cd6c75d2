"""A real model whose every name is hostile, from the monitor to every form of a report."""

import json

import pytest
import torch
from report_runs import HOSTILE
from torch import nn

import kilolayer as kl
from kilolayer.report import RENDERERS, Report, RunFollower, load_runs, render_frame, to_text, verdict_sentence
from kilolayer.report.notebook import show_html

pytest.importorskip("playwright")

# A path separates modules by dots, and file systems allow no slash.
NAME = HOSTILE.replace(".", "").replace("/", "\u2044")
ACTING = "\x1b\x07\u202e\u2066\u200b"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(NAME, nn.Linear(8, 8))

    def forward(self, x):
        return x + torch.relu(getattr(self, NAME)(x))


Block.__name__ = Block.__qualname__ = NAME


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A monitored run of the model, in a folder with a name like the model's."""
    torch.manual_seed(0)
    model = nn.ModuleDict({NAME: nn.Sequential(*(Block() for _ in range(4)))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = tmp_path_factory.mktemp("runs") / NAME[:60]
    with kl.Monitor(model, optimizer, every=1, out=folder) as monitor:
        for _ in range(3):
            loss = model[NAME](torch.randn(16, 8)).square().mean()
            loss.backward()
            monitor.log(loss=loss, **{NAME: 1.0})
            optimizer.step()
            optimizer.zero_grad()
    (folder / "result.json").write_text(json.dumps({NAME: NAME, "outcome": NAME}))
    runs = load_runs([folder])
    return Report(runs, title=NAME, sentence=verdict_sentence(runs), settings={NAME: NAME}), folder


@pytest.mark.parametrize("renderer", RENDERERS, ids=lambda one: one.name)
def test_no_form_of_a_report_acts(report, renderer):
    written = renderer.render(report[0])
    if renderer.name == "png":
        assert written.startswith(b"\x89PNG")
        return
    text = written.decode("utf-8").split("<script>")[0]
    assert not any(character in text for character in ACTING)
    if renderer.name == "html":
        assert "<img" not in text
    if renderer.name == "md":
        assert "<" not in text
    if renderer.name == "json":
        assert json.loads(written)["title"] == NAME


def test_the_terminal_and_the_notebook_show_names_only(report):
    glance = RunFollower(report[1]).look()
    shown = to_text(render_frame(glance))
    assert all(character.isprintable() or character == "\n" for character in shown)
    piece = show_html(glance)
    assert "<img" not in piece
    assert not any(character in piece for character in ACTING)


def test_the_page_is_quiet_and_shows_the_names(opened, report):
    (page_form,) = [one for one in RENDERERS if one.name == "html"]
    tab = opened(page_form.render(report[0]).decode()).draw_all()
    page = tab.page
    page.locator(".plot[data-kind=depth]").first.focus()
    page.keyboard.press("ArrowUp")
    assert tab.console == []
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.locator("script").count() == 3
    assert "<script>alert" in page.locator("[data-readout]").first.inner_text()
    # Names meet hover texts, titles and tables; none of it was taken for markup.
    assert page.evaluate("document.title").startswith("\"><script>alert('x')")
