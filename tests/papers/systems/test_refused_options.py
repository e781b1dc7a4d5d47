"""Options of systems that are refused, in one line that says what is allowed, when the run is prepared."""

from __future__ import annotations

from typing import Any

import pytest

from adadpigu.errors import InputError
from adadpigu.methods import make_method
from trials import prepare_small

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dpdr", {"along_share": 1.0}, r"along_share=1.0 is not in \(0, 1\)"),
    ("dpdr", {"along_clip": 0.0}, "along_clip=0.0 is not a finite number above 0"),
    ("dpdr", {"decay": 1.0}, r"decay=1.0 is not in \[0, 1\)"),
    ("dpdr", {"until": 2.0}, r"until=2.0 is not in \[0, 1\]"),
    ("dpis", {"clip_norm": 0.0}, "clip_norm=0.0 is not a finite number above 0"),
    ("gradient-encoding", {"together": 0}, "together=0 is not at least 1"),
    ("gradient-encoding", {"together": 911}, "together=911 of 910 coordinates"),
    ("per-layer", {"shares": "even"}, "shares='even'"),
    ("per-layer", {"clip_norm": -1.0}, "clip_norm=-1.0 is not a finite number above 0"),
    ("powersgd", {"start_after": -0.1}, r"start_after=-0.1 is not in \[0, 1\]"),
    ("powersgd", {"ranks": 2}, "unknown option of method powersgd"),
    ("rgp", {"rank": 0}, "rank=0 is not at least 1"),
    ("rgp", {"renew_every": 0}, "renew_every=0 is not at least 1"),
    ("rgp", {"history_from": 1.5}, r"history_from=1.5 is not in \[0, 1\]"),
    ("scale-then-privatise", {"offset": 0.0}, "offset=0.0 with square_offset=0.0 lets the scale be 0"),
    ("scale-then-privatise", {"offset": -1.0}, "offset=-1.0 is not a finite number of at least 0"),
    ("slaclip", {"coordinates": 0}, "coordinates=0 is not at least 1"),
    ("slaclip", {"quantile": 1.0}, r"quantile=1.0 is not in \(0, 1\)"),
    ("slaclip", {"clip_norm": 1e-9}, "clip_norm=1e-09 is not in"),
]


@pytest.mark.parametrize(("name", "options", "said"), REFUSED)
def test_bad_options_are_refused_in_one_line(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        prepare_small(make_method(name, options))
    assert "\n" not in str(caught.value)
