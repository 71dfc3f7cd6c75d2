"""One browser for all tests of a file; the runs are those of the renderers' tests."""

import sys
from pathlib import Path

import pytest
from browsing import CHROMIUM, Opened, chromium

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "report"))


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens HTML in a tab of its own."""
    contexts = []

    def open_page(html, **options):
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options}))
        return Opened(contexts[-1].new_page(), path)

    yield open_page
    for context in contexts:
        context.close()
