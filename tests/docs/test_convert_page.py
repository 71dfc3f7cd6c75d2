"""What docs/convert.md prints is what its code prints."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "convert.md"
PAIRS = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(("code", "shown"), PAIRS, ids=["convert", "redepth"])
def test_what_is_shown_is_printed(code, shown):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "docs"})
    assert printed.getvalue() == shown
