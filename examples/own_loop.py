"""A training loop of your own, made private: what differs from a plain PyTorch loop stands in four lines.

python examples/own_loop.py --steps 200
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import adadpigu as ad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    data = ad.load_dataset("digits")
    assert data.test is not None
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=given.steps)
    inputs, targets = data.test.take(torch.arange(len(data.test)))

    loop = ad.PrivateLoop(  # 1: records, budget and method, where a DataLoader would stand
        model,
        optimizer,
        data,
        privacy=ad.Budget(epsilon=4, delta=1e-5),
        method=ad.DPSGD(clip_norm=0.1),
        batch_size=256,
        steps=given.steps,
    )
    with loop:
        for step, batch in enumerate(loop, start=1):  # 2: one Poisson batch, which nobody sees
            optimizer.zero_grad()
            batch.backward()  # 3: instead of loss.backward(); p.grad now holds a release
            optimizer.step()
            scheduler.step()
            if step % 50 == 0:
                model.eval()
                with torch.no_grad():
                    accuracy = (model(inputs).argmax(1) == targets).float().mean()
                model.train()
                print(f"step {step}: test accuracy {accuracy:.1%}")
    print(loop.run.privacy.statement().splitlines()[0])  # 4: what it leaks


if __name__ == "__main__":
    main()
