"""Write docs/causes.md anew from the cards.

python benchmarks/causes_page.py
"""

from pathlib import Path

from kilolayer.diagnosis.explain import render_page

if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "causes.md").write_text(render_page(), encoding="utf-8")
