"""A pretrained-style residual net: its batch norms stay frozen, and a head is fine-tuned on private images.

    python examples/frozen_batch_norm.py

The backbone is the `front`: it stays in eval(), and its features are computed once, in memory. Here it is pretrained on
some digits that stand for public data; with torchvision it would be `resnet18(weights="DEFAULT")` without its `fc`.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.data import load_dataset


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.two, self.norm_two = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm_two(self.two(torch.relu(self.norm_one(self.one(x))))))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
steps = parser.parse_args().steps

torch.manual_seed(0)
digits = load_dataset("digits")
inputs, targets = digits.train.take(torch.arange(len(digits.train)))
public, private = (inputs[:400], targets[:400]), (inputs[400:], targets[400:])

stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
backbone = nn.Sequential(stem, Block(16), Block(16), nn.AdaptiveAvgPool2d(2), nn.Flatten())
pretrained = nn.Sequential(backbone, nn.Linear(64, 10))
optimizer = torch.optim.Adam(pretrained.parameters(), lr=3e-3)
for _ in range(60):
    optimizer.zero_grad()
    F.cross_entropy(pretrained(public[0]), public[1]).backward()
    optimizer.step()

run = ad.train(
    nn.Linear(64, 10), private, front=backbone, records=1_000, test=digits.test.take(torch.arange(len(digits.test))),
    method="dpsgd", batch_size=250, steps=steps, lr=1.0, privacy=ad.Budget(epsilon=2, delta=1e-5),
)  # fmt: skip
print("gradients:", run.gradients)
print(f"test accuracy {run.accuracy:.1%} at epsilon {run.epsilon:.3f}; the norms are as they were pretrained")
