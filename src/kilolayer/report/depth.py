"""Which blocks to name along an axis of depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def depth_ticks(numbers: Sequence[int], *, at_most: int = 6) -> list[int]:
    """Indices of at most ``at_most`` sites to label, given the block number of each site.

    The first and the last block, and round numbers between: 1, 16, 32, 48, 64.
    """
    first_place: dict[int, int] = {}
    for place, number in enumerate(numbers):
        first_place.setdefault(number, place)
    blocks = list(first_place)
    if len(blocks) <= at_most:
        return list(first_place.values())
    stride = next(stride for stride in _strides() if blocks[-1] // stride + 1 <= at_most - 1)
    between = [
        block
        for block in blocks
        if block % stride == 0 and stride / 2 <= blocks[-1] - block and block - blocks[0] >= stride / 2
    ]
    return sorted({first_place[block] for block in (blocks[0], *between, blocks[-1])})


def _strides() -> Iterator[int]:
    power = 1
    while True:
        yield from (factor * power for factor in (1, 2, 4, 5, 8))
        power *= 10
