"""`BatchMemoryManager`, where scripts for Opacus import it from."""

from adadpigu.compat.opacus.memory import BatchMemoryManager

__all__ = ["BatchMemoryManager"]
