"""What the paper and the authors of other systems print, and how they accounted it. None of it is measured here.

Only figures that were read in the authors' text, abstract or code; a withdrawn paper is not quoted. ε is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from adadpigu_paper.reproduce import paper


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One printed figure."""

    accuracy: float
    epsilon: float
    note: str
    """whose it is, and how its ε was accounted"""

    def told(self, mark: str) -> str:
        """In a cell of the table.

        >>> Claim(accuracy=74.9, epsilon=8, note="").told("c")
        '74.9 at 8 [c]'
        """
        return f"{self.accuracy:.4g} at {self.epsilon:g} [{mark}]"


_PAPER = (
    "the AdaDPIGU paper; by classic RDP, batches shuffled and accounted as Poisson in the authors' code, best epoch of "
    "many configurations on the test set"
)
_PROBING = "Tramèr and Boneh 2021, by RDP; features of {}, trained on photographs"
_GEP = (
    "Yu et al., ICLR 2021, ResNet-20, 2,000 ImageNet images as public records, best test epoch, batches shuffled; its "
    "two releases are charged as two separate draws: charged as one, its σ costs ε = 8.6 by the same Rényi conversion "
    "and 7.3 by PLD"
)
_RGP = "the authors' later code of RGP (left side only), wide ResNet; by classic RDP, batches shuffled"
_ENCODING = "Nasr et al. 2020, abstract; by the moments accountant"
_DPIS = "Wei et al. 2022, on ScatterNet features, by RDP; a noisy K is released too, and C adapts"


def _of(note: str, *pairs: tuple[float, float]) -> tuple[Claim, ...]:
    return tuple(Claim(accuracy=accuracy, epsilon=epsilon, note=note) for accuracy, epsilon in pairs)


_AUTHORS: dict[tuple[str, str], tuple[Claim, ...]] = {
    ("linear-probing", "cifar10"): (
        *_of(_PROBING.format("a ResNeXt-29 for CIFAR-100"), (79.6, 2)),
        *_of(_PROBING.format("SimCLRv2"), (92.4, 2)),
    ),
    ("gep", "cifar10"): _of(_GEP, (74.9, 8)),
    ("rgp", "cifar10"): _of(_RGP, (69, 8)),
    ("gradient-encoding", "mnist"): _of(_ENCODING, (96.1, 3.2)),
    ("dpis", "mnist"): _of(_DPIS, (98.5, 2), (98.78, 4)),
    ("dpis", "fashion-mnist"): _of(_DPIS, (88.2, 2), (89.2, 4)),
    ("dpis", "cifar10"): _of(_DPIS, (67.9, 2), (70.6, 4)),
}


def claims(system: str, dataset: str) -> tuple[Claim, ...]:
    """What is printed for a system on a data set, by its authors or else by the paper."""
    printed = paper.ACCURACY[dataset].get(system, ())
    pairs = [(accuracy, epsilon) for accuracy, epsilon in zip(printed, (2, 4), strict=False) if accuracy is not None]
    return _AUTHORS.get((system, dataset), ()) + _of(_PAPER, *pairs)
