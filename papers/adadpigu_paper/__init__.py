"""The AdaDPIGU paper: its tables and figures, its theorems checked, its ablation, and the pre-training of priors.

Installed beside the package: `pip install ./papers`. Its command `adadpigu reproduce` then plugs in.
"""
