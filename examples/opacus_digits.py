"""A script written for Opacus, with two changed lines: a small CNN on handwritten digits.

python examples/opacus_digits.py --epochs 10 --sigma 1.0
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.integrations.opacus import PrivacyEngine  # 1. was: from opacus import PrivacyEngine

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
parser.add_argument("--delta", type=float, default=1e-4)
parser.add_argument("--device", default="cpu")
args = parser.parse_args()

digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(images[:1437], labels[:1437]), batch_size=128)
test_loader = DataLoader(TensorDataset(images[1437:], labels[1437:]), batch_size=1024)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(32 * 4, 32), nn.ReLU(), nn.Linear(32, 10)),
).to(args.device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
privacy_engine = PrivacyEngine()
model, optimizer, criterion, train_loader = privacy_engine.make_private(  # 2. was: model, optimizer, train_loader = …
    module=model,
    optimizer=optimizer,
    criterion=criterion,  # was not there
    data_loader=train_loader,
    noise_multiplier=args.sigma,
    max_grad_norm=1.0,
)
for epoch in range(1, args.epochs + 1):
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        output = model(data.to(args.device))
        loss = criterion(output, target.to(args.device))
        loss.backward()
        optimizer.step()
    epsilon = privacy_engine.get_epsilon(delta=args.delta)
    print(f"Train Epoch: {epoch} (epsilon = {epsilon:.2f}, delta = {args.delta})")
model.eval()
with torch.no_grad():
    right = [(model(data.to(args.device)).argmax(dim=1).cpu() == target).sum() for data, target in test_loader]
print(f"Test set: accuracy {100 * float(sum(right)) / len(images[1437:]):.1f} %")
print(privacy_engine.statement(args.delta))  # beyond Opacus: what is guaranteed, in words
