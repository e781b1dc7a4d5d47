"""Which part of AdaDPIGU helps, where and by how much: the ablation's test runs.

Second phase: runs at the learning rates that the first (`ablation_tuning`) chose, with the same seeds for all variants
of a net, so that differences are paired. The running average of the last iterates is scored, once, on the test set.
"""

from __future__ import annotations

from collections.abc import Mapping

from adadpigu.errors import InputError
from adadpigu_paper.reproduce.ablation_drawing import draw
from adadpigu_paper.reproduce.ablation_tuning import ABLATION_TUNING, Rates, job_name, read_rates
from adadpigu_paper.reproduce.ablation_variants import NETS, VARIANTS, Net, quick_net
from adadpigu_paper.reproduce.artefact import Artefact, Scale
from adadpigu_paper.reproduce.jobs import Job


def jobs(scale: Scale) -> list[Job]:
    """The test runs: at the rates that come with the package, or a quick handful at one rate."""
    if not scale.quick:
        return test_jobs(scale, read_rates())
    net = quick_net()
    rates = {name: VARIANTS[name].lr(net.rates[0]) for name in net.variants}
    return _jobs_of(net, rates, range(scale.seeds or net.seeds))


def test_jobs(scale: Scale, chosen: Rates) -> list[Job]:
    """Those of each net all of whose variants have a rate, net by net and seed by seed."""
    ready = [net for net in NETS.values() if set(net.variants) <= set(chosen.get(net.name, {}))]
    if not ready:
        raise InputError(
            "ablation_rates.toml has no net with a learning rate for each variant; "
            "`adadpigu reproduce ablation-tuning`, then experiments/choose_rates.py"
        )
    return [job for net in ready for job in _jobs_of(net, chosen[net.name], scale.runs(net.seeds))]


def _jobs_of(net: Net, rates: Mapping[str, float], seeds: range) -> list[Job]:
    return [
        Job(name=job_name(net.name, name), config=net.job_config(VARIANTS[name], rates[name]), seed=seed)
        for seed in seeds
        for name in net.variants
    ]


ABLATION = Artefact(
    name="ablation",
    about="which part of AdaDPIGU helps, and whether the whole does, at equal budget and tuning, with paired tests",
    rows="paper/ablation.jsonl",
    beside=(ABLATION_TUNING.rows,),
    draw=draw,
    jobs=jobs,
)
