"""What continuous integration audits: every method that claims privacy, and what its defaults do not have."""

from __future__ import annotations

import pytest

from adadpigu.audit.suite import Entry, entries
from adadpigu.methods import all_methods
from method_cases import OWN

pytestmark = pytest.mark.usefixtures("coarse_cost")
SHORT = list(entries())
PRIVATE = {name for name in OWN if all_methods()[name].private}


@pytest.mark.parametrize("entry", SHORT, ids=lambda entry: f"{entry.subject}-{entry.audit}")
def test_the_short_list_of_audits_refutes_no_method(entry: Entry) -> None:
    """Each refutes a valid claim with a chance of at most 1e-6."""
    result = entry.result()
    assert result.passed, result.findings
    assert result.observations > 0
    assert result.epsilon_lower > 0.6 * result.epsilon_claimed


@pytest.mark.parametrize("full", [False, True])
def test_every_private_method_is_on_both_lists(full: bool) -> None:
    listed = list(entries(full=full))
    kinds = {entry.audit for entry in listed}
    assert kinds >= {"white-box", "replay", "noise", "sampler", "accountant"}
    assert full == (kinds >= {"one-run", "many-runs", "membership"})
    assert {(entry.method, entry.audit) for entry in listed} == {(name, kind) for name in PRIVATE for kind in kinds}
