"""Where scripts for Opacus import `BatchMemoryManager` from."""
