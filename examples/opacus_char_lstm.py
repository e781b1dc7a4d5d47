"""A script written for Opacus, with two changed lines: which language is a name from? An LSTM over its letters.

    python examples/opacus_char_lstm.py --epochs 5 --epsilon 4

It makes the calls of a typical Opacus script for sequences: DPLSTM with its state, a collate_fn that pads,
make_private_with_epsilon. The names are made up by three sets of syllables, so that nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import nn, optim
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from adadpigu.integrations.opacus import DPLSTM, PrivacyEngine  # was: from opacus …, from opacus.layers import DPLSTM

SYLLABLES = (
    ("ka", "shi", "mo", "to", "ya", "ha", "ru", "na", "ki"),
    ("wald", "berg", "stein", "schu", "mann", "fried", "rich", "ul"),
    ("ros", "sini", "bel", "la", "gio", "van", "ni", "etti", "lo"),
)
LETTERS = sorted({letter for language in SYLLABLES for syllable in language for letter in syllable})


class Names(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - public toy data
        self.items = []
        for _ in range(count):
            label = chance.randrange(len(SYLLABLES))
            name = "".join(chance.choice(SYLLABLES[label]) for _ in range(chance.randint(1, 4)))
            self.items.append((torch.tensor([LETTERS.index(letter) + 1 for letter in name]), label))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int):
        return self.items[index]


def padded_collate(batch, padding_idx=0):
    x = pad_sequence([sample for sample, _ in batch], batch_first=True, padding_value=padding_idx)
    return x, torch.tensor([label for _, label in batch])


class CharNNClassifier(nn.Module):
    def __init__(self, embedding_size: int = 16, hidden_size: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS) + 1, embedding_size)
        self.lstm = DPLSTM(embedding_size, hidden_size, batch_first=True)
        self.out_layer = nn.Linear(hidden_size, len(SYLLABLES))

    def forward(self, x: torch.Tensor, hidden=None):
        states, hidden = self.lstm(self.embedding(x), hidden)
        return self.out_layer(states.mean(dim=1)), hidden

    def init_hidden(self, count: int):
        return torch.zeros(1, count, self.lstm.hidden_size), torch.zeros(1, count, self.lstm.hidden_size)


def train(model, criterion, optimizer, train_loader):
    for x, y in train_loader:
        hidden = model.init_hidden(len(x))  # zeros, anew for each batch
        logits, hidden = model(x, hidden)
        loss = criterion(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def test(model, test_loader) -> float:
    model.eval()
    right = [float((model(x)[0].argmax(dim=1) == y).float().mean()) for x, y in test_loader]
    model.train()
    return sum(right) / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=8e-5)
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=2.0)
    args = parser.parse_args()
    train_loader = DataLoader(Names(args.records, 0), batch_size=args.batch_size, collate_fn=padded_collate)
    test_loader = DataLoader(Names(1000, 1), batch_size=250, collate_fn=padded_collate)
    model = CharNNClassifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=args.learning_rate)
    privacy_engine = PrivacyEngine()
    model, optimizer, criterion, train_loader = privacy_engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        criterion=criterion,  # was not there
        data_loader=train_loader,
        target_epsilon=args.epsilon,
        target_delta=args.delta,
        epochs=args.epochs,
        max_grad_norm=args.max_per_sample_grad_norm,
    )
    for epoch in range(1, args.epochs + 1):
        train(model, criterion, optimizer, train_loader)
        epsilon = privacy_engine.get_epsilon(delta=args.delta)
        print(f"epoch {epoch}: test accuracy {100 * test(model, test_loader):.1f} %, epsilon = {epsilon:.2f}")
    print(privacy_engine.statement())  # beyond Opacus: what is guaranteed, in words


if __name__ == "__main__":
    main()
