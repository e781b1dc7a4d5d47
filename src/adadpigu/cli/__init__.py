"""The command line: `adadpigu` and `python -m adadpigu` are the same program.

Exit codes: 0 done; 1 ran, and the answer is no; 2 bad input, one line on standard error; 70 a defect of ours, with its
traceback; 130 interrupted.
"""

import sys
import traceback
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    try:
        from adadpigu.cli.app import run  # the command line's own imports stay out of `import adadpigu`

        code = run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        code = 130
    except Exception:  # never 1, which would be an answer
        traceback.print_exc()
        code = 70
    sys.exit(code)
