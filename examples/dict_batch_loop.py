"""A model with two inputs and two outputs, on records that are dicts, in a loop of one's own.

python examples/dict_batch_loop.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad

RECORDS = 2_000


class Shop(nn.Module):
    """From a customer's age and the ids of what they looked at: whether they buy, and for how much."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.age = nn.Embedding(50, 8), nn.Linear(1, 8)
        self.buys, self.amount = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, age: Tensor, seen: Tensor) -> dict[str, Tensor]:
        customer = torch.tanh(self.age(age) + self.items(seen).mean(dim=1))
        return {"buys": self.buys(customer), "amount": self.amount(customer).squeeze(1)}


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """One loss a record, [n]: no mean over the batch."""
    out = model(batch["age"], batch["seen"])
    bought = F.cross_entropy(out["buys"], batch["bought"], reduction="none")
    return bought + 0.1 * F.mse_loss(out["amount"], batch["amount"], reduction="none")


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
steps = parser.parse_args().steps

torch.manual_seed(0)
age, seen = torch.rand(RECORDS, 1), torch.randint(50, (RECORDS, 5))
bought = (seen < 15).any(dim=1).long()
data = {"age": age, "seen": seen, "bought": bought, "amount": bought * (1 + age[:, 0])}

model = Shop()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
budget = ad.Budget(epsilon=4, delta=1e-5)
loop = ad.PrivateLoop(
    model, optimizer, data, losses=losses, records=RECORDS, batch_size=200, steps=steps, privacy=budget
)
print("gradients:", loop.gradients)
for batch in loop:
    batch.backward()
    optimizer.step()
print(f"epsilon {loop.run.epsilon:.3f}, delta {loop.run.privacy.delta}")
