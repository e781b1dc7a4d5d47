"""`adadpigu bench`: our steps timed against ordinary training and against other private trainers, all on random data.

In the order of a run: nets and contestants (who runs what), processes (one each), timing (interleaved rounds), report
(JSON, Markdown); besides, counting (operations and bytes of a step) and growth (a step against B, d and T). Nothing
here sees a private record.
"""

from __future__ import annotations

from adadpigu.bench.contestants import Contestant, Task, Unavailable
from adadpigu.bench.report import Absence, Report, Row
from adadpigu.bench.run import BenchOptions, run_bench

__all__ = ["Absence", "BenchOptions", "Contestant", "Report", "Row", "Task", "Unavailable", "run_bench"]
