"""For scripts written for Opacus: the same calls, with one changed import.

    from adadpigu.compat.opacus import PrivacyEngine

Nothing of Opacus is imported. docs/opacus.md says what differs, and why.
"""

from adadpigu.compat.opacus.accountants import get_noise_multiplier
from adadpigu.compat.opacus.engine import PrivacyEngine
from adadpigu.compat.opacus.layers import DPGRU, DPLSTM, DPRNN
from adadpigu.compat.opacus.memory import BatchMemoryManager
from adadpigu.compat.opacus.numbers import public
from adadpigu.compat.opacus.validators import ModuleValidator

__all__ = [
    "DPGRU",
    "DPLSTM",
    "DPRNN",
    "BatchMemoryManager",
    "ModuleValidator",
    "PrivacyEngine",
    "get_noise_multiplier",
    "public",
]
