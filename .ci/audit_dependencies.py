"""Judges pip-audit's JSON report (standard input) on the pins of a constraints file (argument): one line a finding.

Exit 0: every pin was looked up, none has a known vulnerability. 1: some have. 2: some could not be looked up, as
happens where no database can be reached; pip-audit itself calls that "no known vulnerabilities" and exits with 0.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def judge(report: str, pins: set[str]) -> tuple[int, list[str]]:
    """The exit code, and what to say."""
    try:
        rows = json.loads(report)["dependencies"]
        looked_up = {_name(row["name"]): row["vulns"] for row in rows if "vulns" in row}
    except (ValueError, KeyError, TypeError):
        looked_up = {}
    found = [
        f"{name}: {vulnerability['id']}, fixed in {', '.join(vulnerability.get('fix_versions') or ['no release'])}"
        for name, vulnerabilities in sorted(looked_up.items())
        for vulnerability in vulnerabilities
    ]
    missing = sorted(pins - looked_up.keys())
    if found:
        return 1, found
    if len(missing) == len(pins):
        return 2, ["no vulnerability database could be reached: nothing was looked up"]
    if missing:
        return 2, [f"{len(missing)} of {len(pins)} pins could not be looked up: {', '.join(missing)}"]
    return 0, [f"{len(pins)} pins were looked up: no known vulnerability"]


def main() -> int:
    """Reads, prints, and gives the exit code."""
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    pins = {_name(line.split("==")[0].strip()) for line in lines if "==" in line and not line.startswith("#")}
    code, said = judge(sys.stdin.read(), pins)
    print(*said, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
