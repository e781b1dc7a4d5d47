"""Tries to break the guarantee, apart from training: `adadpigu audit`, and here the same as functions.

    subject_of(config) or a run folder  ->  AUDITS["white-box"](subject), AUDITS["noise"](subject), …  ->  AuditResult

Audits of the mechanism work on public records or stand-ins; what the others look at is sensitive.
"""

from collections.abc import Callable

from adadpigu.audit.accountant import audit_accountant
from adadpigu.audit.many_runs import audit_many_runs
from adadpigu.audit.membership import audit_membership
from adadpigu.audit.noise import audit_noise
from adadpigu.audit.one_run import audit_one_run
from adadpigu.audit.replay import audit_replay
from adadpigu.audit.result import AuditResult
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Subject, claim_of_run, config_of_run, subject_of
from adadpigu.audit.white_box import audit_white_box

AUDITS: dict[str, Callable[..., AuditResult]] = {
    "white-box": audit_white_box,
    "replay": audit_replay,
    "noise": audit_noise,
    "sampler": audit_sampler,
    "accountant": audit_accountant,
    "one-run": audit_one_run,
    "many-runs": audit_many_runs,
    "membership": audit_membership,
}

__all__ = ["AUDITS", "AuditResult", "Subject", "claim_of_run", "config_of_run", "subject_of"]
