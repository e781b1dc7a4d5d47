"""Before the first draw: do all processes train the same model on the same data, in the same way? They start alike.

Public facts are compared as they are. Records are compared by a digest under a key that the first process draws for
this one comparison; neither key nor digest is kept or written. Weights, and the seed of public choices, are the first
process's.
"""

import secrets
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch.utils._pytree import tree_leaves

from adadpigu.accounting import library_versions
from adadpigu.core.processes import Processes
from adadpigu.core.randomness import Randomness, ReproducibleRandomness, isolated
from adadpigu.core.sampling import Population
from adadpigu.core.trees import Tree, describe_tree, select
from adadpigu.data.datasets import TensorRecords
from adadpigu.errors import InputError
from adadpigu.runs.run import stored_tensors
from adadpigu.tensors import digest
from adadpigu.training.distributed.job import JobError, odd_ranks
from adadpigu.training.preparation import Preparation
from adadpigu.training.resuming import ledger_settings

_LOOKED_AT = 256  # records that are compared where they are read one by one
_AT_ONCE = 4096


def check_ranks_agree(prepared: Preparation, processes: Processes, randomness: Randomness) -> Preparation:
    """The run as all processes will train it; refuses by name where they could not train it together."""
    if processes.size == 1:
        return prepared
    if prepared.options.diagnostics:
        told = f"diagnostics=True in a job of {processes.size} processes, each of which sees its own records alone"
        raise InputError(f"{told}; allowed: in one process")
    drawn_by = {"randomness": randomness.description, "secret noise": randomness.private}  # of each owner's own noise
    every = processes.all_gather_object({**_facts(prepared), **drawn_by})
    for rank, theirs in enumerate(every):
        for key, value in every[0].items():
            if theirs.get(key) != value:
                raise JobError(f"{key}={theirs.get(key)!r} on rank {rank}, {value!r} on rank 0; allowed: the same")
    _compare_records(prepared, processes)
    with torch.no_grad():
        for module in (prepared.model, prepared.front):
            for tensor in {} if module is None else stored_tensors(module).values():
                processes.broadcast(tensor.detach())
    return replace(prepared, seed=processes.broadcast_object(prepared.seed))


def _facts(prepared: Preparation) -> dict[str, object]:
    """All that is public of a run and has to be the same everywhere."""
    inputs, targets = prepared.data.train.take(torch.arange(0))
    return {
        **ledger_settings(prepared),
        "kind of a record": describe_tree(inputs),
        "kind of a target": describe_tree(targets),
        "plan": prepared.plan.to_json(),
        "kind of device": prepared.device.type,
        "engine": prepared.engine.name,
        "libraries": library_versions(),
    }


def _compare_records(prepared: Preparation, processes: Processes) -> None:
    """Whether all see the same records: what they hold is not told, only who differs."""
    key = processes.broadcast_object(secrets.token_hex(32))
    if odd := odd_ranks(processes.all_gather_object(_digest(prepared.data.train, key, prepared.device))):
        told = f"dataset={prepared.data.name!r}: rank {odd} sees other records than rank 0; allowed"
        raise JobError(f"{told}: the same records in the same order everywhere (each rank reads its own share of them)")


def _digest(population: Population, key: str, device: torch.device) -> str:
    """Of all records held as tensors; of records that are read one by one, of a few that the key chooses."""
    parts: Iterable[Tree]
    if isinstance(population, TensorRecords):
        whole = population.inputs, population.targets
        parts = (select(whole, slice(start, start + _AT_ONCE)) for start in range(0, len(population), _AT_ONCE))
    else:
        public_rng = ReproducibleRandomness(int(key, 16))
        chosen = (public_rng.uniform(min(_LOOKED_AT, len(population))) * len(population)).long()
        with isolated(public_rng, device):  # records that are augmented when they are read are so alike everywhere
            parts = [population.take(chosen)]
    return digest((("", leaf) for part in parts for leaf in tree_leaves(part)), start=f"{key} {len(population)}\n")
