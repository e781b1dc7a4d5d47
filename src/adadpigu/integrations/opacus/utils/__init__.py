"""Where scripts for Opacus import from."""
