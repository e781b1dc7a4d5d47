"""Where scripts for Opacus import `BatchMemoryManager` from."""

from adadpigu.integrations.opacus.loader import BatchMemoryManager

__all__ = ["BatchMemoryManager"]
