"""What a newcomer's first pages and examples use is installed by the line that the README gives."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kilolayer.recording import RecordingWriter

tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[2]
EXTRAS = ("lab", "report")

REFUSE = "import sys\nsys.modules.update(dict.fromkeys({refused!r}))\n"


def names_in(lines, extras=("",)):
    found = [Requirement(line) for line in lines]
    return {
        canonicalize_name(one.name)
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    }


def closure():
    """Every distribution that the README's install line brings, those that they need included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = sum((project["optional-dependencies"][extra] for extra in EXTRAS), project["dependencies"])
    known, waiting = {"kilolayer"}, names_in(lines)
    while waiting:
        name = waiting.pop()
        known.add(name)
        try:
            waiting |= names_in(requires(name) or ()) - known
        except PackageNotFoundError:  # not needed on this machine
            continue
    return known


def refused():
    known = closure()
    return {
        module
        for module, owners in packages_distributions().items()
        if module.isidentifier() and not {canonicalize_name(one) for one in owners} & known
    }


def code_of(path):
    text = path.read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) if path.suffix == ".md" else text


def test_the_readme_installs_these_extras():
    for readme in ("README.md", "README.zh-CN.md", "docs/start.md", "docs/index.md"):
        assert f".[{','.join(EXTRAS)}]" in (ROOT / readme).read_text(encoding="utf-8"), readme


@pytest.mark.parametrize(
    "page",
    ["README.md", "README.zh-CN.md", "docs/index.md", "docs/start.md", "docs/zh.md", "examples/plain_loop.py"],
)
def test_first_pages_need_no_more_than_the_install_line(page, tmp_path):
    program = REFUSE.format(refused=refused()) + code_of(ROOT / page)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_missing_pandas_is_told_with_its_extra(monkeypatch):
    recording = RecordingWriter().close()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'kilolayer\[report\]'"):
        recording.to_pandas()
