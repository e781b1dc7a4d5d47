"""The file of a prior: the constants of an encoder and of a projection, what they were trained on, and a checksum.

Everything in it comes from images of random processes; it is public. It is read as a stranger's file would be, and the
one that comes with the package has to be the one that was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from adadpigu.errors import InputError
from adadpigu.priors.encoder import Plan
from adadpigu.tensors import digest, read_header, read_tensors, write_tensors

PACKAGED = Path(__file__).with_name("processes.safetensors")
SHA256 = "48419f83ee828520ce8b740397a98fcadec2892efd098c598346c23e77d2310f"
"""of the packaged weights, by `fingerprint`"""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a prior consists of: constants by name, and what is told of them."""

    plan: Plan
    tensors: Mapping[str, Tensor]
    told: Mapping[str, str]

    def fingerprint(self) -> str:
        """A SHA-256 over the plan, what is told, and all constants with names, types and shapes."""
        start = f"{self.plan.widths} {self.plan.blocks} {sorted(self.told.items())}\n"
        return digest(sorted(self.tensors.items()), start)

    def save(self, path: Path) -> None:
        """Writes the file whole; it holds its own fingerprint."""
        plan = json.dumps({"widths": self.plan.widths, "blocks": self.plan.blocks})
        halves = {name: value.half().cpu().contiguous() for name, value in self.tensors.items()}
        kept = Weights(plan=self.plan, tensors=halves, told=self.told)
        write_tensors(path, halves, {**self.told, "plan": plan, "sha256": kept.fingerprint()})


def read_weights(path: Path) -> Weights:
    """The constants of a file, found to be what was written."""
    told = dict(read_header(path, "prior").metadata)
    try:
        shape = json.loads(told.pop("plan"))
        plan = Plan(widths=tuple(map(int, shape["widths"])), blocks=tuple(map(int, shape["blocks"])))
        expected = told.pop("sha256")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"prior={str(path)!r} is no prior: its header lacks {error}") from None
    found = Weights(plan=plan, tensors=read_tensors(path, "prior"), told=told)
    if found.fingerprint() != expected:
        raise InputError(f"prior={str(path)!r}: SHA-256 {found.fingerprint()} is not {expected}")
    return found


def packaged_weights() -> Weights:
    """The weights that come with the package."""
    found = read_weights(PACKAGED)
    if found.fingerprint() != SHA256:
        raise InputError(f"prior={str(PACKAGED)!r}: SHA-256 {found.fingerprint()} is not {SHA256}; install anew")
    return found
