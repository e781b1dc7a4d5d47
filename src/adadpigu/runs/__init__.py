"""A run folder: written (`run`), read (`reading`), verified (`verifying`), loaded (`loading`)."""
