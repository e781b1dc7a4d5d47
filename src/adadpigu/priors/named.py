"""Priors by name: the file of each, and the hash that it must have. Public.

A name never gets other weights, since runs name their features by it: a better prior has a new name.
"""

from dataclasses import dataclass
from pathlib import Path

from adadpigu.errors import check_known, require
from adadpigu.priors.encoder import Weights, read_weights

_PACKAGE = Path(__file__).parent
_REPOSITORY = _PACKAGE.parents[2] / "priors"
"""of the source code, for files that would make an installed package too large"""


@dataclass(frozen=True, kw_only=True)
class NamedPrior:
    """Where a prior is, by what it is known again, and what of it was chosen by scores."""

    file: str
    sha256: str
    """by `Weights.fingerprint`"""
    chosen: str
    """for the statement of a run: which choices looked at training records, and at which"""
    packaged: bool = True

    @property
    def path(self) -> Path:
        return (_PACKAGE if self.packaged else _REPOSITORY) / self.file


NAMED = {
    "prior": NamedPrior(
        file="processes.safetensors",
        sha256="48419f83ee828520ce8b740397a98fcadec2892efd098c598346c23e77d2310f",
        chosen="its projection was chosen by scores on training records of CIFAR-10",
    ),
}


def named_weights(name: str) -> Weights:
    """The constants of a prior that comes with the package or with its source code."""
    check_known("prior", name, NAMED)
    known = NAMED[name]
    there = known.packaged or known.path.exists()
    whence = f"priors/{known.file} of the source repository"
    require(there, f"prior={name!r} is not in an installed package; allowed: --features FILE, with {whence}")
    return read_weights(known.path, known.sha256, advice="; install anew")


def known_by(sha256: str) -> NamedPrior | None:
    """The prior of this fingerprint; None for one that is somebody else's."""
    return next((known for known in NAMED.values() if known.sha256 == sha256), None)
