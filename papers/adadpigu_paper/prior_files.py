"""Files of pre-training: checkpoints in pieces that travel, and the prior that runs use. Public throughout.

A checkpoint holds what a part of the training leaves to the next, in four bytes a weight and in pieces of at most
15 MB. A prior is an encoder without batch norms, with the statistics and the projection that process images give.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from adadpigu.errors import InputError, require
from adadpigu.features.prior import Parts
from adadpigu.priors.encoder import EncoderShape, Weights
from adadpigu.tensors import digest, read_file, write_tensors
from adadpigu_paper.encoder import Encoder, Plan, WideEncoder, encoder_constants, process_images, projection
from adadpigu_paper.pretraining import Learner, Pretrained, Pretraining

ORIGIN = "images of random processes (adadpigu.priors.random_images, adadpigu_paper); no photograph, no record"
SHAPE = (3, 32, 32)
PIECE = 15 * 2**20
"""bytes of a piece, but for a tensor that is larger by itself"""
_BYTE = torch.float8_e4m3fn
_LEAST, _STEPS = -60.0, 4.0
"""log2 of the least v that is kept, and steps of a byte in a factor of 2: v is right to 9 %, a step of AdamW to 5 %"""


def save_checkpoint(made: Pretrained, folder: Path) -> list[Path]:
    """Writes the pieces of a checkpoint, named by step and number; returns them."""
    held = {name: value.cpu().contiguous() for name, value in _packed(made).items()}
    pieces: list[dict[str, Tensor]] = [{}]
    for name, value in held.items():
        if pieces[-1] and sum(t.nbytes for t in pieces[-1].values()) + value.nbytes > PIECE:
            pieces.append({})
        pieces[-1][name] = value
    facts = {"plan": _told(made.encoder.plan), "step": str(made.step)}
    facts |= {"pieces": str(len(pieces)), "sha256": digest(sorted(held.items()), facts["plan"])}
    paths = [folder / f"checkpoint-{made.step}-{number}.safetensors" for number in range(1, len(pieces) + 1)]
    for path, piece in zip(paths, pieces, strict=True):
        write_tensors(path, piece, facts)
    return paths


def _told(plan: Plan) -> str:
    """A plan as text."""
    return json.dumps({"net": plan} if isinstance(plan, str) else {"widths": plan.widths, "blocks": plan.blocks})


@torch.no_grad()
def _packed(made: Pretrained) -> dict[str, Tensor]:
    """Four bytes a weight: its average as a half, how far it is from that in a byte, and v in another."""
    held: dict[str, Tensor] = {}
    now = made.now.state_dict()
    for name, value in made.averaged.state_dict().items():
        if not value.is_floating_point():
            continue  # batches that batch norms have counted: nothing depends on them
        held[f"averaged.{name}"] = half = value.cpu().half()
        apart = now[name].cpu().float() - half.float()
        scale = apart.abs().max().clamp(min=1e-30) / torch.finfo(_BYTE).max
        held[f"scale.{name}"], held[f"apart.{name}"] = scale, (apart / scale).to(_BYTE)
    for (name, _), square in zip(made.now.named_parameters(), made.squares, strict=True):
        held[f"square.{name}"] = (_STEPS * (square.cpu().float().log2() - _LEAST)).round().clamp(0, 255).to(torch.uint8)
    return held


@torch.no_grad()
def _unpacked(held: Mapping[str, Tensor], plan: Plan, step: int) -> Pretrained:
    now, averaged = Learner(plan), Learner(plan)
    found, mean = now.state_dict(), averaged.state_dict()
    for name, value in mean.items():
        if value.is_floating_point():
            value.copy_(held[f"averaged.{name}"])
            found[name].copy_(value + held[f"apart.{name}"].float() * held[f"scale.{name}"])
    coded = [held[f"square.{name}"].float() for name, _ in now.named_parameters()]
    squares = [torch.where(code > 0, torch.exp2(code / _STEPS + _LEAST), 0.0) for code in coded]
    return Pretrained(now=now, averaged=averaged, squares=squares, step=step)


def read_checkpoint(folder: Path) -> Pretrained:
    """The latest checkpoint of a folder; one with a piece missing or altered is refused."""
    found = {path: _place(path) for path in folder.glob("checkpoint-*-*.safetensors")}
    require(bool(found), f"checkpoint={str(folder)!r}: no checkpoint-STEP-PIECE.safetensors is in it")
    latest = max(step for step, _ in found.values())
    tensors: dict[str, Tensor] = {}
    facts: dict[str, str] = {}
    for path in sorted(path for path, (step, _) in found.items() if step == latest):
        part, facts = read_file(path, "checkpoint")
        tensors |= part
    told = f"checkpoint={str(folder)!r}: step {latest} lacks a piece or was altered"
    told += f"; allowed: all {facts.get('pieces', 'its')} pieces, as they were written"
    try:
        shape = json.loads(facts["plan"])
        plan = shape["net"] if "net" in shape else EncoderShape(**{key: tuple(value) for key, value in shape.items()})
        require(digest(sorted(tensors.items()), facts["plan"]) == facts["sha256"], told)
        return _unpacked(tensors, plan, latest)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(told) from error


def clear(folder: Path, *, but: Collection[Path]) -> None:
    """Removes the pieces of other checkpoints than this one."""
    for path in folder.glob("checkpoint-*-*.safetensors"):
        if path not in but:
            path.unlink()


def _place(path: Path) -> tuple[int, int]:
    """Step and number of a piece, by its name."""
    try:
        _, step, number = path.stem.split("-")
        return int(step), int(number)
    except ValueError:
        raise InputError(f"checkpoint={str(path)!r} is not named checkpoint-STEP-PIECE.safetensors") from None


def weights_of(made: Pretrained, told: Pretraining, facts: Mapping[str, str], *, statistics: int) -> Weights:
    """An encoder's constants, with its channels' statistics over fresh process images."""
    encoder = made.encoder
    assert isinstance(encoder, Encoder)
    device = next(encoder.parameters()).device
    images = process_images(statistics, torch.Generator(device=device).manual_seed(told.seed + 1))
    return Weights(plan=encoder.plan, tensors=encoder_constants(encoder, images), metadata=_metadata(made, told, facts))


def _metadata(made: Pretrained, told: Pretraining, facts: Mapping[str, str]) -> dict[str, str]:
    return {"trained on": ORIGIN, "settings": repr(told), "steps made": str(made.step), **facts}


def save_start(made: Pretrained, told: Pretraining, facts: Mapping[str, str], path: Path) -> None:
    """Writes where a net by name starts (`--initialisation FILE`): its weights but the last layer's, as halves."""
    encoder = made.encoder
    assert isinstance(encoder, WideEncoder)
    halves = {name: value.detach().half().cpu().contiguous() for name, value in encoder.net.named_parameters()}
    write_tensors(path, halves, _metadata(made, told, facts))


def projected(
    weights: Weights, device: torch.device, *, seed: int, statistics: int, keep: int, power: float
) -> Weights:
    """The weights with a projection, from process images of its own seed."""
    images = process_images(statistics, torch.Generator(device=device).manual_seed(seed))
    encoder: Mapping[str, Tensor] = {
        k: v.half().clone(memory_format=torch.contiguous_format)  # laid out as it is read from a file
        for k, v in weights.tensors.items()
        if not k.startswith("projection")
    }
    found = projection(Parts(weights.plan, encoder, SHAPE).to(device), images, keep=keep, power=power)
    facts = {"projection": f"keep {keep}, power {power:g}, {statistics} images, seed {seed}"}
    return Weights(plan=weights.plan, tensors={**encoder, **found}, metadata={**weights.metadata, **facts})


def save_prior(made: Weights, path: Path) -> None:
    """Writes the file whole, numbers as halves; it holds its own fingerprint."""
    plan = _told(made.plan)
    halves = {name: value.half().cpu().contiguous() for name, value in made.tensors.items()}
    kept = replace(made, tensors=halves)
    write_tensors(path, halves, {**made.metadata, "plan": plan, "sha256": kept.fingerprint()})
