import numpy as np
import pytest
import torch

from kilolayer.monitor import rows
from kilolayer.monitor.rows import HeldRows, RowQueue
from kilolayer.recording import RecordingWriter


def queue_and_codes():
    writer = RecordingWriter()
    return RowQueue(writer), [writer.code(name, "activation", "rms") for name in ("a", "b", "c")]


def found(queue):
    frame = queue.writer.close().to_pandas()
    return sorted(zip(frame.step, frame.site.astype(str), frame.value, strict=True))


def test_values_on_the_host_and_on_a_device_end_up_alike():
    queue, (a, b, c) = queue_and_codes()
    queue.put_each(
        3, {a: 2.0, b: (torch.tensor(4.0), 0.5), c: (torch.tensor(1.0, dtype=torch.bfloat16), 3.0)}, factor=2.0
    )
    queue.put(4, np.array([a, b]), torch.tensor([5.0, 6.0]))
    queue.put(5, np.array([c]), np.array([7.0]))
    queue.flush()
    assert found(queue) == [(3, "a", 4.0), (3, "b", 4.0), (3, "c", 6.0), (4, "a", 5.0), (4, "b", 6.0), (5, "c", 7.0)]


def test_what_is_on_a_device_waits_for_one_transfer(monkeypatch):
    queue, (a, b, _) = queue_and_codes()
    moves = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: (moves.append(len(tensor)), cpu(tensor))[1])
    for step in range(3):
        queue.put_each(step, {a: (torch.tensor(1.0), 1.0), b: (torch.tensor(2.0), 1.0)})
    assert moves == []
    queue.flush()
    queue.flush()
    assert moves == [6]
    assert len(found(queue)) == 6


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(rows, "MAX_WAITING", 2)
    queue, (a, *_) = queue_and_codes()
    for step in range(5):
        queue.put(step, np.array([a]), torch.ones(1))
    assert len(queue._waiting) == 1
    queue.flush()
    assert len(found(queue)) == 5


def test_nothing_is_no_row():
    queue, _ = queue_and_codes()
    queue.put(0, np.array([], dtype=int), np.array([]))
    queue.put_each(0, {})
    queue.flush()
    assert found(queue) == []


@pytest.mark.parametrize("size", [1e39, float("nan")])
def test_non_finite_values_pass(size):
    queue, (a, *_) = queue_and_codes()
    queue.put_each(0, {a: size})
    assert not np.isfinite(found(queue)[0][2])


def test_listeners_hear_the_step_listened_to_and_no_other():
    queue, _ = queue_and_codes()
    queue.code("a", "activation", "rms")
    code = queue.code("b", "activation", "rms")
    heard = []
    queue.subscribe(lambda step, rows: heard.append((step, dict(rows))))
    queue.tell()
    assert heard == []
    queue.listen(4)
    queue.put_each(4, {code: 2.0})
    queue.put_each(3, {code: 9.0})
    queue.put(4, np.array([queue.code("a", "activation", "rms")]), torch.tensor([3.0]))
    queue.flush()
    queue.tell()
    assert heard == [(4, {("b", "activation", "rms"): 2.0, ("a", "activation", "rms"): 3.0})]
    queue.listen(None)
    queue.put_each(5, {code: 1.0})
    queue.tell()
    assert len(heard) == 1


def test_held_rows_are_dropped_or_released():
    queue, codes = queue_and_codes()
    held = HeldRows(queue)
    assert held.code("a", "activation", "rms") == codes[0]
    held.put(0, np.array(codes[:1]), np.array([1.0]))
    held.drop()
    held.put(0, np.array(codes[1:2]), np.array([2.0]))
    held.release()
    held.release()
    assert found(queue) == [(0, "b", 2.0)]
