"""What the presets reach: each trained on all training records with several seeds, scored on the test set.

    python experiments/measure.py mnist-hf-eps4 mnist-dpsgd-eps4 --seeds 5 --out results/presets.jsonl --device cuda

Presets are not chosen by these figures (that is `tune.py`'s, on held-out training records).
"""

from __future__ import annotations

import argparse
import statistics

from runner import Job, flags, run_all, tell

from adadpigu.config import all_presets, read_preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+", help="names, or the beginnings of names")
    given = flags(parser, seeds=3)
    names = [name for name in all_presets() if any(name.startswith(start) for start in given.presets)]
    jobs = [Job(name, read_preset(name), seed, "test") for seed in range(given.seeds) for name in names]
    found: dict[str, list[float]] = {}
    for result in run_all(
        jobs, out=given.out, device=given.device, workers=given.workers, seconds=given.seconds, grace=given.grace
    ):
        tell(result)
        if "accuracy" in result:
            found.setdefault(result["name"], []).append(100 * result["accuracy"])
    for name, scores in sorted(found.items()):
        spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
        print(f"{name}: {statistics.mean(scores):.2f} ± {spread:.2f} % ({len(scores)} seeds)")


if __name__ == "__main__":
    main()
