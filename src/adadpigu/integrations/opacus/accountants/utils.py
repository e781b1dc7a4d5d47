"""Where scripts for Opacus import `get_noise_multiplier` from."""

from adadpigu.integrations.opacus.accountants import get_noise_multiplier

__all__ = ["get_noise_multiplier"]
