"""A private model as files for others: a torch.export program, an ONNX file, and a model card for Hugging Face.

python examples/export_model.py --steps 100 --out exported
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

import adadpigu as ad
from adadpigu.export import Synthetic, export_onnx, export_program, write_card
from adadpigu.models import make_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("exported"))
    given = parser.parse_args()
    if given.out.exists():  # found before the budget is spent
        parser.error(f"--out {given.out} is there already; allowed: a new folder")
    run = ad.train(
        make_model("digits-mlp"),
        ad.load_dataset("digits"),
        privacy=ad.Budget(epsilon=4, delta=1e-5),
        method=ad.DPSGD(clip_norm=0.1),
        batch_size=256,
        steps=given.steps,
        lr=2.0,
    )
    given.out.mkdir(parents=True)
    print(f"trained: test accuracy {run.accuracy or 0:.1%}")
    records = Synthetic(shape=(1, 8, 8))  # what a record looks like; a real one is never asked for
    for made in (
        export_program(run, given.out / "model.pt2", records=records),
        export_onnx(run, given.out / "model.onnx", records=records),
    ):
        print(f"{made.path}: {made.bytes:,} bytes, outputs within {made.difference:.1g} of the model's")
    print(f"{write_card(run, given.out / 'README.md', license='apache-2.0')}: the model card")
    inside = {entry.key: entry.value for entry in onnx.load(given.out / "model.onnx").metadata_props}
    print(f"inside model.onnx: {inside['adadpigu.statement.txt'].splitlines()[0]}")


if __name__ == "__main__":
    main()
