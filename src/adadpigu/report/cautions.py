"""What a reader must see before a run's numbers: why its guarantee is not what the ε alone would say."""

from __future__ import annotations

from adadpigu.methods import all_methods

DIAGNOSTICS = (
    "Diagnostics were on: somebody could look at un-noised losses, norms and batch sizes. These are outside the "
    "guarantee, and so is everything decided because of them. They are not shown on this page."
)
REPEATABLE = (
    "NOT PRIVATE: the noise was reproducible. Whoever knows the seed can subtract it; no ε applies to this run."
)
UNPROTECTED = "NOT PRIVATE: this run gives no guarantee for anybody's record."
UNSAID = (
    "No end is recorded: the run still trains, or its process ended without notice. Nothing is claimed for it yet; "
    "what its ledger has charged is spent."
)
UNKNOWN = (
    "Neither its settings nor its claim can be read: nobody can tell from the folder whether Diagnostics were on, or "
    "whether the noise was secret."
)
UNSTATED = "Its privacy.json cannot be trusted: no ε is shown for it."
UNBOUND = (
    "Its ledger has no record of the files that the run left, so its claim is not shown. An ε beside it is what the "
    "ledger has charged."
)
UNCLAIMED = (
    "The run has ended and there is no privacy.json: nothing is claimed for it. An ε beside it is what its ledger has "
    "charged."
)


def unprotected(method: str) -> bool:
    """Whether a method of ours is one that gives no guarantee, as its name tells before anything is claimed.

    >>> unprotected("sgd"), unprotected("dpsgd"), unprotected("somebody's own")
    (True, False, False)
    """
    known = all_methods().get(method)
    return known is not None and not known.private
