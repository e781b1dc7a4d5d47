"""On GPUs: clipped sums are reduced, and releases gathered, by NCCL, and the update is that of one process.

One GPU is enough for the first test, in which a job of one makes every call that a larger one makes.
"""

from __future__ import annotations

import importlib

import jobs
import pytest
import torch
from torch import Tensor

from adadpigu.training.distributed.job import Job

BOTH = "cpu:gloo,cuda:nccl"
FORMS = ("dpsgd", "adadpigu", "dpsur")


def by_a_job() -> dict[str, Tensor]:
    """Each form trained on this process's GPU, as a member of a job also where it is the only one."""
    job = Job()
    torch.cuda.set_device(job.rank)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("adadpigu.training.train"), "current", lambda: job)
        return {name: jobs.weights(jobs.train(name, device="cuda")).cpu() for name in FORMS}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_job_over_nccl_makes_the_update_of_a_process_by_itself() -> None:
    (found,) = jobs.job(1, by_a_job, backend=BOTH)
    for name in FORMS:
        alone = jobs.weights(jobs.train(name, device="cuda")).cpu()
        torch.testing.assert_close(found[name], alone, rtol=0, atol=1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_make_the_update_of_one() -> None:
    for found in jobs.job(2, by_a_job, backend=BOTH):
        for name in FORMS:
            alone = jobs.weights(jobs.train(name, device="cuda")).cpu()
            torch.testing.assert_close(found[name], alone, rtol=0, atol=1e-6)
