"""`adadpigu prior`: images of random processes, and encoders that are trained on nothing else. Public throughout."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadpigu.cli.commands import Json, add, example
from adadpigu.console import count_progress, notes, print_json, screen
from adadpigu.errors import InputError, check, check_known, check_range

if TYPE_CHECKING:
    import torch

    from adadpigu.priors.random_images import RandomImages
    from adadpigu_paper.pretraining import Pretraining

app = typer.Typer(
    help="Train encoders on images of random processes, and look at such images.",
    short_help="Encoders of images of random processes.",
    epilog=example("adadpigu prior show --count 16"),
    rich_markup_mode=None,
)
KINDS = ("leaves", "programs")
Processes = Annotated[
    str, typer.Option(help="leaves (shapes, noise, untrained nets), or programs (these and random programs).")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …")]


def train(
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, rows and the prior.")],
    steps: Annotated[int, typer.Option(help="Steps in all, over all parts.")] = 3200,
    seconds: Annotated[float | None, typer.Option(help="Stop after so long; the same command goes on.")] = None,
    images: Annotated[int, typer.Option(help="Images in a step, of two views each.")] = 1024,
    widths: Annotated[str, typer.Option(help="Channels of each stage.")] = "64,128,256",
    blocks: Annotated[str, typer.Option(help="Residual blocks of each stage.")] = "1,2,2",
    processes: Processes = "programs",
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    decay: Annotated[float, typer.Option(help="Share of the steps over which it falls, at the end.")] = 0.3,
    average: Annotated[float, typer.Option(help="Running average of the weights; 0: the last ones.")] = 0.998,
    temperature: Annotated[float, typer.Option(help="Of the contrastive loss.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Of images, views and first weights.")] = 0,
    statistics: Annotated[int, typer.Option(help="Images for means and directions.")] = 4096,
    keep: Annotated[int, typer.Option(help="Directions of the projection.")] = 483,
    power: Annotated[float, typer.Option(help="0: directions as they vary, 1: all alike.")] = 0.75,
    probe: Annotated[
        str | None, typer.Option(help="Score a linear head on held-out training records of this data set.")
    ] = None,
    records: Annotated[int, typer.Option(help="Training records of the probe.")] = 10_000,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Trains an encoder, in parts if need be. Goes on from the latest checkpoint in the folder.

    Writes checkpoint-STEP-PIECE.safetensors, prior.safetensors (for `--features`) and rows.jsonl: loss, seconds, probe.
    With more steps than before, a finished training is extended.
    """
    from adadpigu.features.prior import Prior
    from adadpigu.priors.encoder import read_weights
    from adadpigu.training.options import TrainingOptions
    from adadpigu_paper.pretraining import pretrain
    from adadpigu_paper.prior_files import projected, read_checkpoint, save_checkpoint, save_prior, weights_of
    from adadpigu_paper.probe import probe as scores
    from adadpigu_paper.probe import split_of

    options = {"steps": steps, "images": images, "lr": lr, "decay": decay, "average": average}
    told = _pretraining((widths, blocks), processes, **options, temperature=temperature, seed=seed)
    check_range("seconds", seconds, "a finite number above 0")
    where = TrainingOptions(steps=1, device=device).torch_device()
    split = None if probe is None else split_of(probe, records)
    out.mkdir(parents=True, exist_ok=True)
    start = read_checkpoint(out) if any(out.glob("checkpoint-*.safetensors")) else None
    if start is not None and start.encoder.plan != told.plan:
        raise InputError(f"widths={widths}, blocks={blocks}: {str(out)!r} holds another encoder; allowed: its own")
    first, began = 0 if start is None else start.step, time.perf_counter()
    check("steps", steps, steps > first, f"{str(out)!r} is at step {first}; allowed: more")
    with count_progress(notes(), "pre-training") as progress:

        def heard(step: int, loss: float) -> None:
            progress(step + 1 - first, steps - first)
            _append(out, {"step": step + 1, "loss": loss, "seconds": round(time.perf_counter() - began, 1)})

        made = pretrain(told, where, heard, start=start, seconds=seconds or math.inf)
    save_checkpoint(made, out)
    facts = {"torch": _torch_version(), "device": _name(where), "seconds": f"{time.perf_counter() - began:.0f}"}
    weights = weights_of(made, told, facts, statistics=statistics)
    weights = projected(weights, where, seed=seed + 7, statistics=statistics, keep=keep, power=power)
    path = out / "prior.safetensors"
    save_prior(weights, path)
    found: dict[str, object] = {"prior": str(path), "step": made.step, "of": steps}
    if split is not None:
        found |= {"probe": probe, "records": records}
        found |= scores(Prior(read_weights(path), split.shape).to(where), split, where)
        _append(out, found)
    if as_json:
        print_json(found)
    else:
        for name, value in found.items():
            screen().print(f"{name:10} {value}", soft_wrap=True, markup=False)
    return 0


def show(
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("process-images.png"),
    count: Annotated[int, typer.Option(help="Images.")] = 80,
    side: Annotated[int, typer.Option(help="Pixels a side, a multiple of 16.")] = 48,
    processes: Processes = "programs",
    seed: Annotated[int, typer.Option(help="Of the images.")] = 0,
    as_json: Json = False,
) -> int:
    """Draws images of random processes, as pre-training sees them."""
    import torch
    from PIL import Image

    check("count", count, 1 <= count <= 10_000, "must be from 1 to 10000")
    made = _processes(processes, side)(count, torch.Generator().manual_seed(seed))
    columns = min(count, 16)
    empty = -count % columns
    tiles = torch.cat([made, torch.ones(empty, *made.shape[1:])]).reshape(-1, columns, 3, side, side)
    sheet = tiles.permute(0, 3, 1, 4, 2).reshape(len(tiles) * side, columns * side, 3)
    Image.fromarray((255 * sheet).byte().numpy()).save(out)
    print_json({"file": str(out), "images": count}) if as_json else screen().print(f"written: {out}", soft_wrap=True)
    return 0


def _pretraining(shape: tuple[str, str], processes: str, **options: Any) -> Pretraining:
    from adadpigu.priors.encoder import EncoderShape
    from adadpigu_paper.pretraining import Pretraining

    try:
        widths, blocks = (tuple(int(number) for number in text.split(",")) for text in shape)
    except ValueError:
        raise InputError(f"widths={shape[0]}, blocks={shape[1]}; allowed: whole numbers with commas") from None
    plan = EncoderShape(widths=widths, blocks=blocks)
    return Pretraining(plan=plan, processes=_processes(processes, 48), **options)


def _processes(kind: str, side: int) -> RandomImages:
    from adadpigu.priors.random_images import RandomImages
    from adadpigu_paper.programs import ProgramImages

    check_known("processes", kind, KINDS)
    return ProgramImages(side=side) if kind == "programs" else RandomImages(side=side)


def _append(out: Path, row: dict[str, object]) -> None:
    with (out / "rows.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _torch_version() -> str:
    import torch

    return torch.__version__


def _name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


add(app, train, "adadpigu prior train --steps 3 --images 8 --statistics 64 --out tiny")
add(app, show, "adadpigu prior show --count 16 --out process-images.png")


def add_to(program: typer.Typer) -> None:
    """Adds the commands of this file."""
    program.add_typer(app, name="prior")
