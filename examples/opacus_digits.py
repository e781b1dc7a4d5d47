"""A script written for Opacus, with one changed import: a small CNN on handwritten digits.

    python examples/opacus_digits.py --epochs 10 --sigma 1.0

It makes the calls of a typical Opacus script: make_private, loss.backward(), optimizer.step(), get_epsilon.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.compat.opacus import PrivacyEngine  # was: from opacus import PrivacyEngine


class SampleConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.view(-1, 32 * 4)))
        return self.fc2(x)


def train(args, model, device, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
    epsilon = privacy_engine.get_epsilon(delta=args.delta)
    print(f"Train Epoch: {epoch} (epsilon = {epsilon:.2f}, delta = {args.delta})")


def test(model, device, test_loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for data, target in test_loader:
            pred = model(data.to(device)).argmax(dim=1)
            correct += int((pred == target.to(device)).sum())
            total += len(target)
    print(f"Test set: accuracy {correct}/{total} ({100 * correct / total:.1f} %)")


def loaders(batch_size: int) -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train_set, test_set = (TensorDataset(images[part], labels[part]) for part in (slice(1437), slice(1437, None)))
    return DataLoader(train_set, batch_size=batch_size), DataLoader(test_set, batch_size=1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    train_loader, test_loader = loaders(args.batch_size)
    model = SampleConvNet().to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    privacy_engine = PrivacyEngine()
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.max_per_sample_grad_norm,
    )
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, privacy_engine, epoch)
    test(model, device, test_loader)
    print(privacy_engine.statement(args.delta))  # beyond Opacus: what is guaranteed, in words


if __name__ == "__main__":
    main()
