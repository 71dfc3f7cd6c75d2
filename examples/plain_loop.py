"""The monitor in a loop of your own, and what the recording says of a network that does not train.

python examples/plain_loop.py [OUT]
"""

import sys

import torch

import kilolayer as kl

torch.manual_seed(0)
blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(30)]
model = torch.nn.Sequential(*blocks, torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(512, 64)
targets = inputs[:, :10].argmax(-1)

with kl.Monitor(model, optimizer, every=10, out=sys.argv[1] if len(sys.argv) > 1 else None) as monitor:
    for step in range(40):
        batch = torch.randint(512, (128,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        loss.backward()
        monitor.log(loss=loss)  # before optimizer.step, which ends the step
        optimizer.step()

recording = monitor.recording
table = recording.to_pandas()
rms = table[(table.step == 0) & (table.role == "activation") & (table.stat == "rms")]
print(rms[["site", "value"]].iloc[::6].to_string(index=False))
root = kl.diagnose(recording).root
print(root.message if root else "no cause found")
