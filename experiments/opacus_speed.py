"""Times one script with Opacus' PrivacyEngine and with ours: the same net, loader, loss and optimizer, turn by turn.

    python experiments/opacus_speed.py --rounds 3

Prints seconds a pass of each and their ratio as JSON. Records are random numbers in the shape of MNIST, or words.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10


def mnist(engine: Any) -> tuple[nn.Module, TensorDataset]:
    from adadpigu.models import make_model

    data = TensorDataset(torch.randn(ARGS.records, 1, 28, 28), torch.randint(CLASSES, (ARGS.records,)))
    return make_model("mnist-cnn", shape=(1, 28, 28), classes=CLASSES), data


class Words(nn.Module):
    """An embedding, an LSTM, a layer of scores."""

    def __init__(self, recurrent: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(58, 64)
        self.recurrent = recurrent(64, 128, batch_first=True)
        self.scores = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.recurrent(self.embedding(x))[0][:, -1])
        return scores


def char_lstm(layers: Any) -> tuple[nn.Module, TensorDataset]:
    data = TensorDataset(torch.randint(58, (ARGS.records, 16)), torch.randint(CLASSES, (ARGS.records,)))
    return Words(layers.DPLSTM), data


def script(net: Callable[[Any], tuple[nn.Module, TensorDataset]], ours: bool) -> Callable[[], float]:
    """One pass over the loader, timed; the first one is for warming up."""
    if ours:
        from adadpigu.integrations.opacus import PrivacyEngine, layers
    else:
        from opacus import PrivacyEngine, layers
    torch.manual_seed(0)
    module, data = net(layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    loader = DataLoader(data, batch_size=ARGS.batch)
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        **({"criterion": nn.CrossEntropyLoss()} if ours else {}),
    )
    model, optimizer, *_, loader = made
    criterion = made[2] if ours else nn.CrossEntropyLoss()

    def one_pass() -> float:
        start = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        return time.perf_counter() - start

    one_pass()
    return one_pass


def main() -> int:
    warnings.simplefilter("ignore")
    found = {}
    for name, net in (("mnist-cnn", mnist), ("char-lstm", char_lstm)):
        passes = {who: script(net, ours=who == "ours") for who in ("opacus", "ours")}
        times: dict[str, list[float]] = {who: [] for who in passes}
        for _ in range(ARGS.rounds):
            for who, one_pass in passes.items():
                times[who].append(one_pass())
        middle = {who: statistics.median(seconds) for who, seconds in times.items()}
        found[name] = {"seconds_a_pass": middle, "faster": middle["opacus"] / middle["ours"]}
    print(json.dumps({"records": ARGS.records, "batch": ARGS.batch, "threads": torch.get_num_threads(), **found}))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    ARGS = parser.parse_args()
    sys.exit(main())
