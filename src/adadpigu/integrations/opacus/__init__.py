"""For scripts written for Opacus: the same calls, with two changed lines.

    from adadpigu.integrations.opacus import PrivacyEngine
    model, optimizer, criterion, loader = PrivacyEngine().make_private(..., criterion=criterion)

Nothing of Opacus is imported. docs/opacus.md says what differs, and why.
"""

from adadpigu.integrations.opacus.accountants import get_noise_multiplier
from adadpigu.integrations.opacus.engine import PrivacyEngine
from adadpigu.integrations.opacus.layers import DPGRU, DPLSTM, DPRNN
from adadpigu.integrations.opacus.loader import BatchMemoryManager
from adadpigu.integrations.opacus.validators import ModuleValidator

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "BatchMemoryManager", "ModuleValidator", "PrivacyEngine", "get_noise_multiplier"]
