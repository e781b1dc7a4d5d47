"""Several processes that train one model: one global Poisson draw, each record clipped where it lives, one ledger.

    rank 0 charges -> tosses the coins -> each rank bounds its records -> sums are reduced to the owner of a coordinate
    -> the owner adds its noise -> noisy values are gathered

`job` (torch.distributed), `rank_checks` (do ranks train the same?), `launching` (torchrun), `sharded_training` (FSDP2)
"""

from adadpigu.training.distributed.job import alone, current
from adadpigu.training.distributed.launching import joined

__all__ = ["alone", "current", "joined"]
