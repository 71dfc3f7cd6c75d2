"""The monitor in a loop on Hugging Face Accelerate, on one process or many.

    python examples/accelerate_loop.py [OUT]
    ACCELERATE_USE_CPU=true torchrun --nproc-per-node 2 examples/accelerate_loop.py

With GPUs, DDP or FSDP2: ``accelerate launch [--use_fsdp --fsdp_version 2] examples/accelerate_loop.py``.
"""

import sys

import torch
from accelerate import Accelerator

import kilolayer as kl
from kilolayer.nn import TransformerEncoder, TransformerEncoderLayer

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)
layer = TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, scheme="deepnorm")
model = TransformerEncoder(layer, num_layers=8)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
accelerator.print(f"{accelerator.distributed_type}, {accelerator.num_processes} processes")

with kl.Monitor(model, optimizer, every=2, out=sys.argv[1] if len(sys.argv) > 1 else None) as monitor:
    for _ in range(12):  # micro-batches: six steps
        with accelerator.accumulate(model):
            loss = model(torch.randn(8, 10, 32, device=accelerator.device)).square().mean()
            accelerator.backward(loss)
            monitor.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()

if accelerator.is_main_process:  # which is the one that records
    steps, norms = monitor.recording.series("run", "run", "grad_norm")
    for step, norm in zip(steps, norms, strict=True):
        print(f"step {step}: gradient norm {norm:.3g}")
