"""Pages in Debian's Chromium, driven by Playwright; everything a page says on its console is kept."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@contextmanager
def chromium():
    """A browser without a profile or a network of its own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A report opened in a tab: its page, what it wrote to the console, and the addresses it asked for."""

    def __init__(self, page, path):
        self.page, self.console, self.requests = page, [], []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("dialog", lambda dialog: (self.console.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())

    def draw_all(self):
        """Scroll through the page, as its pictures are drawn when they come into view."""
        for plot in self.page.locator(".plot").all():
            plot.scroll_into_view_if_needed()
        self.page.wait_for_function("[...document.querySelectorAll('.plot')].every((one) => one.dataset.drawn)")
        return self
