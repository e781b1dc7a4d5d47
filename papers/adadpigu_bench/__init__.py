"""`adadpigu bench`: our steps timed against ordinary training and against other private trainers, all on random data.

In the order of a run: nets and contestants (who runs what), processes (one each), timing (interleaved rounds), report
(JSON, Markdown); besides, counting (operations and bytes of a step) and growth (a step against B, d and T). Nothing
here sees a private record.
"""
