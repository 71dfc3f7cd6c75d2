import io

from rich.console import Console

from kilolayer.train import progress as room
from kilolayer.train.progress import TrainingProgress


def show(monkeypatch, *, terminal, shown=True):
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=120, color_system=None)
    monkeypatch.setattr(room, "Console", lambda stderr: console)
    with TrainingProgress(10, shown=shown) as bar:
        bar.show(4, loss=2.345, norm=0.67, speed=12345.6)
        bar.say("spike: step 3")
        bar.bar.refresh()
    return written.getvalue()


def test_a_terminal_sees_loss_gradient_speed_and_time_left(monkeypatch):
    text = show(monkeypatch, terminal=True)
    for word in ("4/10", "loss 2.345", "gradient 0.67", "12,346 tokens/s", "left", "spike: step 3"):
        assert word in text


def test_elsewhere_only_what_happened_is_said(monkeypatch):
    assert show(monkeypatch, terminal=False).strip() == "spike: step 3"


def test_other_processes_say_nothing_of_the_bar(monkeypatch):
    assert "loss" not in show(monkeypatch, terminal=True, shown=False)
