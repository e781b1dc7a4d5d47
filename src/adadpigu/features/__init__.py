"""What comes before the trained net: fixed features and normalisers, record by record. Sensitive in, sensitive out.

Nothing here learns from records, so nothing here is charged; `ReleasedNorm` is filled by a charged stage of training.
"""

from __future__ import annotations

from adadpigu.features.front import Front, Fronted, make_front
from adadpigu.features.scattering import Scattering

__all__ = ["Front", "Fronted", "Scattering", "make_front"]
