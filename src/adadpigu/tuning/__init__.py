"""Choosing settings on private records, charged: `adadpigu tune`.

    candidates -> the draw of how many runs, on disk -> runs, each scored with noise -> the best one's folder

All runs and the choice among them are one event (`accounting.repeating`), reserved before the first run.
"""

from adadpigu.tuning.search import Search, tune

__all__ = ["Search", "tune"]
