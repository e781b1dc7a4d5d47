"""ε of what was charged, by the names of Opacus."""

from adadpigu.compat.opacus.accountants.accountant import Accountant
from adadpigu.compat.opacus.accountants.utils import get_noise_multiplier

__all__ = ["Accountant", "get_noise_multiplier"]
