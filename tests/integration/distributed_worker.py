"""What each process of test_monitor_distributed runs: ``torchrun ... distributed_worker.py FOLDER``."""

import contextlib
import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from kilolayer.monitor import Monitor
from kilolayer.structure import read_structure

NUM_STEPS = 7
BATCH = 12


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.gate = nn.Sigmoid()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.gate(6 * self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(Block(7) for _ in range(3))
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        h = torch.relu(self.stem(x)) + 3.0
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def build():
    torch.manual_seed(0)
    model = Net().double()
    generator = torch.Generator().manual_seed(1)
    batches = [
        tuple(torch.randn(BATCH, size, generator=generator, dtype=torch.float64) for size in (5, 3))
        for _ in range(NUM_STEPS)
    ]
    return model, batches


def make_optimizer(name, model):
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05)
    if name == "two":
        late = [p for path, p in model.named_parameters() if "head" in path]
        early = [p for path, p in model.named_parameters() if "head" not in path]
        return [torch.optim.SGD(late, lr=0.05, momentum=0.9), torch.optim.AdamW(early, lr=0.01)]
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, batches, share, monitor=None):
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
    for x, y in batches:
        for one in optimizers:
            one.zero_grad()
        loss = (model(x[share]) - y[share]).square().mean()
        loss.backward()
        if monitor is not None:
            monitor.log(loss=loss)
        for one in optimizers:
            one.step()


def shard(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


CASES = {
    "ddp": (DistributedDataParallel, "adamw", {"every": 3}),
    "ddp core": (DistributedDataParallel, "sgd", {"every": 2, "stats": "core"}),
    "ddp two": (DistributedDataParallel, "two", {"every": 3}),
    "fsdp": (shard, "adamw", {"every": 3}),
    "fsdp sgd": (shard, "sgd", {"every": 4}),
    "fsdp two": (shard, "two", {"every": 3}),
    "fsdp core": (shard, "adamw", {"every": 2, "stats": "core"}),
}


def sites_of(name, model, batches):
    """A sharded model's structure cannot be read while it runs, so it is read before."""
    return read_structure(model, (batches[0][0],)) if name.startswith("fsdp") else None


def run_case(name, folder, share):
    wrap, optimizer, options = CASES[name]
    model, batches = build()
    sites = sites_of(name, model, batches)
    parallel = wrap(model)
    optimizer = make_optimizer(optimizer, parallel)
    with Monitor(parallel, optimizer, sites=sites, out=folder / name, **options) as monitor:
        train(parallel, optimizer, batches, share, monitor)
    assert distributed.get_rank() == 0 or len(monitor.recording) == 0


def count_collectives(folder, rank, share):
    """Collectives of the monitor's own in each step, beside those of the training itself."""
    counts = []
    for is_watched in (False, True):
        calls = []
        original = distributed.all_reduce
        distributed.all_reduce = lambda *args, **kwargs: (calls.append(1), original(*args, **kwargs))[1]  # noqa: B023
        try:
            model, batches = build()
            optimizer = make_optimizer("adamw", shard(model))
            monitor = Monitor(model, optimizer, every=3) if is_watched else None
            steps = []
            if monitor is not None:
                monitor.start()
            for batch in batches:
                before = len(calls)
                train(model, optimizer, [batch], share, monitor)
                steps.append(len(calls) - before)
            if monitor is not None:
                monitor.close()
        finally:
            distributed.all_reduce = original
        counts.append(steps)
    if rank == 0:
        (folder / "collectives").write_text(repr(counts))


def raise_in_mid_run(folder, rank, share):
    model, batches = build()
    optimizer = make_optimizer("adamw", shard(model))
    with (
        contextlib.suppress(KeyError),
        Monitor(model, optimizer, every=3, out=folder / "raised") as monitor,
    ):
        train(model, optimizer, batches[:5], share, monitor)
        raise KeyError("mine")


def watch_in_one_process(folder, rank, share):
    model, batches = build()
    parallel = DistributedDataParallel(model)
    optimizer = make_optimizer("adamw", parallel)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if rank == 0:
            with Monitor(parallel, optimizer, every=3, out=folder / "alone") as monitor:
                train(parallel, optimizer, batches, share, monitor)
            (folder / "alone.txt").write_text("\n".join(str(warning.message) for warning in caught))
        else:
            train(parallel, optimizer, batches, share)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    folder = Path(sys.argv[1])
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    half = BATCH // distributed.get_world_size()
    share = slice(half * rank, half * (rank + 1))
    for name in CASES:
        run_case(name, folder, share)
    count_collectives(folder, rank, share)
    raise_in_mid_run(folder, rank, share)
    watch_in_one_process(folder, rank, share)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
