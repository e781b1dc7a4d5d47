"""One model, several processes: the same script alone and in a job. Rank 0 keeps the ledger and speaks.

python examples/several_processes.py --steps 60
torchrun --standalone --nproc-per-node 2 examples/several_processes.py --steps 60
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch import nn

import adadpigu as ad
from adadpigu.training.distributed import joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, help="run folder; a job that is started again goes on with what is there")
    given = parser.parse_args()
    data = ad.load_dataset("digits")  # the whole of it everywhere: each process reads the records that live with it
    with joined() as processes:  # torch.distributed, if torchrun has started us
        run = ad.train(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)),
            data,
            privacy=ad.Budget(epsilon=4, delta=1e-5),
            method=ad.DPSGD(clip_norm=0.1),
            batch_size=256,
            steps=given.steps,
            lr=2.0,
            out=given.out,
            resume=given.out is not None and (given.out / "ledger.log").exists(),
        )
        if processes.rank == 0:
            print(f"{processes.size} process(es), test accuracy {run.accuracy or 0:.1%}")
            print(run.privacy.statement().splitlines()[0])


if __name__ == "__main__":
    main()
