"""Tries a tier's bits by tests of NIST SP 800-22, and its coins and noise by their laws.

Bits come in sequences of 2²⁵. Of each test the share of sequences with p ≥ 0.01 and the spread of p over ten ranges are
held to what chance allows; so are χ² of 4,096 ranges, moments and correlations of all coins and all noise.
Exits 1 where a figure has a chance below 1e-6 over the number of figures.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.special import erfc, gammaincc
from scipy.stats import chi2, norm
from torch import Tensor

from adadpigu.audit.p_values import binomial_p
from adadpigu.core.randomness import Randomness, choose_randomness

SEQUENCE = 2**20  # words
RANGES, LAGS = 4096, 8
LONGEST = (0.0882, 0.2092, 0.2483, 0.1933, 0.1208, 0.0675, 0.0727)
"""chances of a longest run of at most 10, of 11, …, 15 and of more in 10,000 bits (SP 800-22, 3.4)"""
SCALE = 2.0**21  # of rounded noise, in steps of the grid


def bits_of(words: Tensor) -> Tensor:
    """[n] words -> [32 n] of 0 and 1."""
    return ((words[:, None] >> torch.arange(32, device=words.device)) & 1).flatten().to(torch.int32)


def frequency(bits: Tensor) -> float:
    return float(erfc(abs(2 * int(bits.sum()) - len(bits)) / math.sqrt(2 * len(bits))))


def block_frequency(bits: Tensor, block: int = 2**14) -> float:
    blocks = bits[: len(bits) // block * block].view(-1, block)
    share = blocks.double().mean(dim=1) - 0.5
    return float(gammaincc(len(blocks) / 2, 2 * block * float(share.square().sum())))


def runs(bits: Tensor) -> float:
    share, count = float(bits.double().mean()), 1 + int((bits[1:] != bits[:-1]).sum())
    spread = share * (1 - share)
    return float(erfc(abs(count - 2 * len(bits) * spread) / (2 * math.sqrt(2 * len(bits)) * spread)))


def longest_run(bits: Tensor, block: int = 10_000) -> float:
    blocks = bits[: len(bits) // block * block].view(-1, block)
    place = torch.arange(1, block + 1, device=bits.device)
    last_zero = torch.where(blocks == 0, place, 0).cummax(dim=1).values
    longest = (place - last_zero).amax(dim=1).clamp(10, 16) - 10
    seen = torch.bincount(longest, minlength=7).double().cpu().numpy()
    expected = len(blocks) * np.array(LONGEST)
    return float(gammaincc(3, ((seen - expected) ** 2 / expected).sum() / 2))


def cumulative_sums(bits: Tensor) -> float:
    n, z = len(bits), int((2 * bits - 1).cumsum(0).abs().max())
    root, reach = math.sqrt(n), int(n / z)
    k = np.arange((-reach + 1) // 4, (reach - 1) // 4 + 1)
    first = (norm.cdf((4 * k + 1) * z / root) - norm.cdf((4 * k - 1) * z / root)).sum()
    k = np.arange((-reach - 3) // 4, (reach - 1) // 4 + 1)
    return float(1 - first + (norm.cdf((4 * k + 3) * z / root) - norm.cdf((4 * k + 1) * z / root)).sum())


def _patterns(bits: Tensor, length: int) -> Tensor:
    """How often each pattern of so many bits is there, wrapped around."""
    wrapped, value = torch.cat([bits, bits[: length - 1]]), torch.zeros_like(bits)
    for at in range(length):
        value = value * 2 + wrapped[at : at + len(bits)]
    return torch.bincount(value, minlength=2**length).double()


def serial(bits: Tensor, length: int = 16) -> float:
    n = len(bits)
    three = [2**m / n * float(_patterns(bits, m).square().sum()) - n for m in (length, length - 1, length - 2)]
    return float(gammaincc(2 ** (length - 2), (three[0] - three[1]) / 2))


def approximate_entropy(bits: Tensor, length: int = 10) -> float:
    n = len(bits)
    shares = [_patterns(bits, m) / n for m in (length, length + 1)]
    entropy = [float((share * share.clamp(min=1e-300).log()).sum()) for share in shares]
    return float(gammaincc(2 ** (length - 1), n * (math.log(2) - (entropy[0] - entropy[1]))))


TESTS: dict[str, Callable[[Tensor], float]] = {
    "frequency": frequency,
    "block frequency": block_frequency,
    "runs": runs,
    "longest run": longest_run,
    "cumulative sums": cumulative_sums,
    "serial": serial,
    "approximate entropy": approximate_entropy,
}


def spread_of(values: list[float]) -> Iterator[tuple[str, float]]:
    """Whether p-values of one test are as chance makes them: how many are at least 0.01, and how they lie."""
    passed = sum(p >= 0.01 for p in values)
    yield f"{passed} of {len(values)} sequences have p ≥ 0.01", binomial_p(passed, len(values), 0.99)
    if len(values) >= 100:
        seen, _ = np.histogram(values, bins=10, range=(0, 1))
        expected = len(values) / 10
        yield "p in ten ranges", float(chi2.sf(((seen - expected) ** 2 / expected).sum(), 9))


class Law:
    """Numbers of a known law, a part at a time: mapped to [0, 1), counted and correlated."""

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(RANGES, dtype=torch.int64, device=device)
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self.products = torch.zeros(LAGS, dtype=torch.float64, device=device)
        self.size, self.pairs = 0, 0

    def add(self, normal: Tensor, uniform: Tensor) -> None:
        self.counts += torch.bincount((uniform * RANGES).long().clamp(0, RANGES - 1), minlength=RANGES)
        self.sums += torch.stack([normal.pow(power).sum() for power in (1, 2, 3, 4)])
        self.products += torch.stack([(normal[lag:] * normal[:-lag]).sum() for lag in range(1, LAGS + 1)])
        self.size, self.pairs = self.size + len(normal), self.pairs + len(normal) - LAGS

    def figures(self) -> Iterator[tuple[str, float]]:
        expected = self.size / RANGES
        yield (
            f"χ² of {RANGES} ranges",
            float(chi2.sf(float((self.counts - expected).square().sum()) / expected, RANGES - 1)),
        )
        for power, (sum_, mean, variance) in enumerate(
            zip(self.sums.tolist(), (0, 1, 0, 3), (1, 2, 15, 96), strict=True), 1
        ):
            yield f"moment {power}", float(erfc(abs(sum_ - self.size * mean) / math.sqrt(2 * self.size * variance)))
        for lag, product in enumerate(self.products.tolist(), 1):
            yield f"correlation {lag} apart", float(erfc(abs(product) / math.sqrt(2 * self.pairs)))


def tried(source: Randomness, device: torch.device, numbers: int) -> Iterator[tuple[str, str, float]]:
    """(what, figure, p) of so many words, coins and numbers of noise each."""
    sequences = max(1, round(numbers / SEQUENCE))
    found: dict[str, list[float]] = {name: [] for name in TESTS}
    draws = {"noise": source.normal}
    if hasattr(source, "rounded"):
        draws["rounded noise"] = lambda count: source.rounded(count, SCALE) / SCALE
    laws = {name: Law(device) for name in ("coins", *draws)}
    for _ in range(sequences):
        coins = source.uniform(SEQUENCE).to(device)
        bits = bits_of((coins * 2.0**32).long())
        for name, test in TESTS.items():
            found[name].append(test(bits))
        laws["coins"].add(torch.special.ndtri(coins.clamp(min=2.0**-54)), coins)
        for name, draw in draws.items():
            normal = draw(SEQUENCE).to(device)
            laws[name].add(normal, torch.special.ndtr(normal))
    for name, values in found.items():
        yield from ((f"bits: {name}", told, p) for told, p in spread_of(values))
    for name, law in laws.items():
        yield from ((name, told, p) for told, p in law.figures())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tier", default="secure,exact")
    parser.add_argument("--numbers", type=float, default=1e7, help="of each kind [1e7]")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device, rows = torch.device(given.device), []
    for tier in given.tier.split(","):
        source = choose_randomness(tier, device)
        for what, told, p in tried(source, device, int(given.numbers)):
            rows.append({"tier": tier, "device": device.type, "what": what, "found": told, "p": p})
            print(f"{tier}: {what}: {told}: p = {p:.3g}")
    failed = [row for row in rows if not row["p"] > 1e-6 / len(rows)]
    print(
        f"{len(rows)} figures of {given.numbers:g} numbers of each kind; {len(failed)} have a chance below 1e-6 in all"
    )
    if given.out is not None:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
