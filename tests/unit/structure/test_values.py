import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kilolayer.structure.values import ValueTable, _part, may_overlap


@pytest.fixture
def log():
    return []


@pytest.fixture
def table(log):
    def new_source(tensor):
        log.append("source")
        return 100 + len(log)

    def new_merge(tensor, old, written):
        log.append((old, written))
        return 100 + len(log)

    return ValueTable(new_source, new_merge)


def test_a_tensor_and_a_second_object_of_the_same_part(table, log):
    x = torch.zeros(4)
    table.put(x, 1)
    assert table.find(x) == table.find(x.view(4)) == 1
    assert log == []


def test_an_unknown_tensor_is_a_source_once(table, log):
    x = torch.zeros(4)
    assert table.find(x) == table.find(x)
    assert log == ["source"]
    assert not table.is_made_here(x)


def test_a_write_through_the_whole_replaces(table, log):
    x = torch.zeros(2, 3)
    table.put(x, 1)
    flat = x.view(6)
    table.put(flat, 2)
    table.write(flat, 3)
    assert table.find(x) == 101
    assert log == [(None, 3)]


def test_a_write_through_a_part_merges(table, log):
    x = torch.zeros(2, 3)
    table.put(x, 1)
    table.put(x[:, 1:], 2)
    table.write(x[:, 1:], 3)
    assert table.find(x) == table.find(x) == 101
    assert log == [(1, 3)]


def test_a_write_beside_a_part_leaves_it(table, log):
    x = torch.zeros(2, 6)
    left, right = x.chunk(2, dim=1)
    table.put(left, 1)
    table.put(right, 2)
    table.write(left, 3)
    assert (table.find(right), table.find(left)) == (2, 3)
    assert log == []


def test_an_address_used_again_is_another_tensor(table):
    for number in range(50):
        x = torch.zeros(64)
        assert not table.is_made_here(x)
        table.put(x, number)
        assert table.find(x) == number
        assert table.is_made_here(x)
        del x


def entries(part):
    offset, shape, strides, _ = part
    found = {offset}
    for size, stride in zip(shape, strides, strict=True):
        found = {place + step * stride for place in found for step in range(size)}
    return found


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 2)), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 2)), min_size=3, max_size=3),
)
def test_parts_said_not_to_overlap_share_no_entry(first, second):
    x = torch.zeros(4, 5, 6)
    one, two = (
        x[tuple(slice(start, start + size * step, step) for start, size, step in cut)] for cut in (first, second)
    )
    if one.numel() and two.numel() and not may_overlap(_part(one), _part(two)):
        assert not entries(_part(one)) & entries(_part(two))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_neighboring_slices_do_not_overlap(dim):
    one, two = torch.zeros(4, 4, 4).chunk(2, dim=dim)
    assert not may_overlap(_part(one), _part(two))
    assert may_overlap(_part(one), _part(one))


def test_sparse_tensors_are_told_apart(table):
    x, y = torch.eye(3).to_sparse(), torch.eye(3).to_sparse()
    table.put(x, 1)
    table.put(y, 2)
    assert (table.find(x), table.find(y)) == (1, 2)
