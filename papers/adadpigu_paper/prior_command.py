"""`adadpigu prior`: images of random processes, and encoders that are trained on nothing else. Public throughout."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadpigu.cli.commands import Json, add, example
from adadpigu.console import count_progress, notes, print_json, screen
from adadpigu.errors import InputError, check, check_known, check_range

if TYPE_CHECKING:
    import torch

    from adadpigu.priors.random_images import RandomImages
    from adadpigu_paper.pretraining import Pretrained, Pretraining
    from adadpigu_paper.probe import Split

Found = dict[str, object]
app = typer.Typer(
    help="Train encoders on images of random processes, and look at such images.",
    short_help="Encoders of images of random processes.",
    epilog=example("adadpigu prior show --count 16"),
    rich_markup_mode=None,
)
KINDS = ("leaves", "programs", "mixed")
Processes = Annotated[
    str,
    typer.Option(
        help="leaves (shapes, noise, untrained nets), programs (random programs too), mixed (mixtures, drawings too)."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …")]
Statistics = Annotated[int, typer.Option(help="Images for means and directions.")]
Keep = Annotated[int, typer.Option(help="Directions of the projection.")]
Power = Annotated[float, typer.Option(help="0: directions as they vary, 1: all alike.")]
Probe = Annotated[
    str | None, typer.Option(help="Score linear heads on held-out training records of these data sets, with commas.")
]
Records = Annotated[int, typer.Option(help="Training records of a probe.")]


def train(
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, rows and the prior.")],
    steps: Annotated[int, typer.Option(help="Steps in all, over all parts.")] = 3200,
    seconds: Annotated[float | None, typer.Option(help="Stop after so long; the same command goes on.")] = None,
    images: Annotated[int, typer.Option(help="Images in a step, of two views each.")] = 1024,
    net: Annotated[str | None, typer.Option(help="A net by name in place of stages: wrn-16-4.")] = None,
    widths: Annotated[str, typer.Option(help="Channels of each stage.")] = "64,128,256",
    blocks: Annotated[str, typer.Option(help="Residual blocks of each stage.")] = "1,2,2",
    processes: Processes = "mixed",
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    fall: Annotated[float, typer.Option(help="Share of this part over which it falls, at the end; 0: it stays.")] = 0.3,
    average: Annotated[float, typer.Option(help="Running average of the weights; 0: the last ones.")] = 0.998,
    temperature: Annotated[float, typer.Option(help="Of the contrastive loss.")] = 0.2,
    store: Annotated[int, typer.Option(help="Steps' worth of images to draw from.")] = 16,
    uses: Annotated[int, typer.Option(help="A step's worth of them is renewed every so many steps.")] = 4,
    seed: Annotated[int, typer.Option(help="Of images, views and first weights.")] = 0,
    statistics: Statistics = 4096,
    keep: Keep = 483,
    power: Power = 0.75,
    probe: Probe = None,
    records: Records = 10_000,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Trains an encoder, in parts if need be. Goes on from the latest checkpoint in the folder.

    Writes checkpoint-STEP-PIECE.safetensors, prior.safetensors (for `--features`) and rows.jsonl: loss, seconds, probe.
    The checkpoint is from before the fall of the learning rate, so that more steps or seconds extend a training. With
    --net it writes start.safetensors, for `--model` of that name with `--initialisation`.
    """
    from adadpigu.priors.encoder import read_weights
    from adadpigu.training.options import TrainingOptions
    from adadpigu_paper.pretraining import pretrain
    from adadpigu_paper.prior_files import clear, read_checkpoint, save_checkpoint

    options = {"steps": steps, "images": images, "lr": lr, "fall": fall, "average": average, "seed": seed}
    options |= {"temperature": temperature, "store": store, "uses": uses}
    told = _pretraining(net or (widths, blocks), processes, **options)
    check("probe", probe, net is None or probe is None, f"with net={net}; allowed: none, it has no projection")
    check_range("seconds", seconds, "a finite number above 0")
    where = TrainingOptions(steps=1, device=device).torch_device()
    splits = _splits(probe, records)
    out.mkdir(parents=True, exist_ok=True)
    start = read_checkpoint(out) if any(out.glob("checkpoint-*.safetensors")) else None
    if start is not None and start.encoder.plan != told.plan:
        asked = f"widths={widths}, blocks={blocks}" if net is None else f"net={net}"
        raise InputError(f"{asked}: {str(out)!r} holds another encoder; allowed: its own")
    first, began = 0 if start is None else start.step, time.perf_counter()
    check("steps", steps, steps > first, f"{str(out)!r} is at step {first}; allowed: more")
    with count_progress(notes(), "pre-training") as progress:

        def heard(step: int, loss: float) -> None:
            progress(step - first, steps - first)
            _append(out, {"step": step, "loss": loss, "seconds": round(time.perf_counter() - began, 1)})

        def keep_state(made: Pretrained) -> None:
            clear(out, but=save_checkpoint(made, out))

        made = pretrain(told, where, heard, start=start, seconds=seconds or math.inf, keep=keep_state)
    spent = time.perf_counter() - began
    facts = {"torch": _torch_version(), "device": _name(where), "seconds": f"{spent:.0f}"}
    path = _write(made, told, facts, out, statistics=statistics, keep=keep, power=power)
    found: Found = {"prior": str(path), "step": made.step, "of": steps, "fallen": fall > 0}
    found |= {"images_per_second": round(images * (made.step - first) / spent), "seconds": round(spent)}
    if net is None:
        found["sha256"] = read_weights(path).fingerprint()  # by which `adadpigu.priors.named` knows it
    _append(out, {"name": out.resolve().name, **found, "device": facts["device"], "settings": repr(told)})
    _tell(found, _probed(path, splits, where), as_json, out)
    return 0


def _write(made: Pretrained, told: Pretraining, facts: dict[str, str], out: Path, **projection: Any) -> Path:
    """Writes what a part has made, for use: a prior with its statistics and projection, or where a net starts."""
    from adadpigu_paper.prior_files import projected, save_prior, save_start, weights_of

    if isinstance(told.plan, str):
        path = out / "start.safetensors"
        save_start(made, told, facts, path)
        return path
    where, path = next(made.encoder.parameters()).device, out / "prior.safetensors"
    weights = weights_of(made, told, facts, statistics=projection["statistics"])
    save_prior(projected(weights, where, seed=told.seed + 7, **projection), path)
    return path


def project(
    prior: Annotated[Path, typer.Argument(metavar="FILE", help="A prior.", show_default=False)],
    out: Annotated[Path, typer.Option(help="File to write.")],
    keep: Keep = 483,
    power: Power = 0.75,
    statistics: Statistics = 4096,
    seed: Annotated[int, typer.Option(help="Of the images that directions come from.")] = 7,
    probe: Probe = None,
    records: Records = 10_000,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Gives a prior another projection. More or fewer directions, weighed in another way."""
    from adadpigu.priors.encoder import read_weights
    from adadpigu.training.options import TrainingOptions
    from adadpigu_paper.prior_files import projected, save_prior

    where = TrainingOptions(steps=1, device=device).torch_device()
    weights, splits = read_weights(prior), _splits(probe, records)
    made = projected(weights, where, seed=seed, statistics=statistics, keep=keep, power=power)
    save_prior(made, out)
    _tell({"prior": str(out), "keep": keep, "power": power}, _probed(out, splits, where), as_json)
    return 0


def _splits(names: str | None, records: int) -> dict[str, Split]:
    from adadpigu_paper.probe import split_of

    return {} if names is None else {name: split_of(name, records) for name in names.split(",")}


def _probed(path: Path, splits: Mapping[str, Split], where: torch.device) -> Iterator[Found]:
    """A row for each data set: how good a prior's features are for linear heads."""
    from adadpigu.features.prior import Prior
    from adadpigu.priors.encoder import read_weights
    from adadpigu_paper.probe import probe

    for name, split in splits.items():
        scores = probe(Prior(read_weights(path), split.shape).to(where), split, where)
        yield {"probe": name, "records": len(split.inputs), **scores}


def _tell(found: Found, probed: Iterable[Found], as_json: bool, out: Path | None = None) -> None:
    """Shows what was made and how it scores; appends the scores to the rows of a folder."""
    rows = []
    for row in probed:
        rows.append(row)
        if out is not None:
            _append(out, {"step": found["step"], "fallen": found["fallen"], **row})
    if as_json:
        print_json({**found, "probes": rows})
        return
    for row in (found, *rows):
        for name, value in row.items():
            screen().print(f"{name:18} {value}", soft_wrap=True, markup=False)


def show(
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("process-images.png"),
    count: Annotated[int, typer.Option(help="Images.")] = 80,
    side: Annotated[int, typer.Option(help="Pixels a side, a multiple of 16.")] = 48,
    processes: Processes = "mixed",
    seed: Annotated[int, typer.Option(help="Of the images.")] = 0,
    as_json: Json = False,
) -> int:
    """Draws images of random processes, as pre-training sees them."""
    import torch
    from PIL import Image

    check("count", count, 1 <= count <= 10_000, "must be from 1 to 10000")
    began = time.perf_counter()
    made = _processes(processes, side)(count, torch.Generator().manual_seed(seed))
    rate = round(count / (time.perf_counter() - began))
    columns = min(count, 16)
    empty = -count % columns
    tiles = torch.cat([made, torch.ones(empty, *made.shape[1:])]).reshape(-1, columns, 3, side, side)
    sheet = tiles.permute(0, 3, 1, 4, 2).reshape(len(tiles) * side, columns * side, 3)
    Image.fromarray((255 * sheet).byte().numpy()).save(out)
    if as_json:
        print_json({"file": str(out), "images": count, "images_per_second": rate})
    else:
        screen().print(f"written: {out}, {rate} images a second", soft_wrap=True)
    return 0


def _pretraining(shape: str | tuple[str, str], processes: str, **options: Any) -> Pretraining:
    from adadpigu.priors.encoder import EncoderShape
    from adadpigu_paper.encoder import NETS
    from adadpigu_paper.pretraining import Pretraining

    made = _processes(processes, 48)
    if isinstance(shape, str):
        check_known("net", shape, NETS)
        return Pretraining(plan=shape, processes=made, **options)
    try:
        widths, blocks = (tuple(int(number) for number in text.split(",")) for text in shape)
    except ValueError:
        raise InputError(f"widths={shape[0]}, blocks={shape[1]}; allowed: whole numbers with commas") from None
    plan = EncoderShape(widths=widths, blocks=blocks)
    return Pretraining(plan=plan, processes=made, **options)


def _processes(kind: str, side: int) -> RandomImages:
    from adadpigu.priors.random_images import RandomImages
    from adadpigu_paper.drawings import MixedImages
    from adadpigu_paper.programs import ProgramImages

    check_known("processes", kind, KINDS)
    made = {"leaves": RandomImages, "programs": ProgramImages, "mixed": MixedImages}[kind]
    return made(side=side)


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
add(app, project, "adadpigu prior project tiny/prior.safetensors --keep 32 --out 32.safetensors")
add(app, show, "adadpigu prior show --count 16 --out process-images.png")


def add_to(program: typer.Typer) -> None:
    """Adds the commands of this file."""
    program.add_typer(app, name="prior")
