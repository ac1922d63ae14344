"""What counts as silence. Real halts are in ``tests/cluster/test_losses.py``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bireme.control.silence import forgiven

SECONDS = st.floats(0, 1e6)


def test_what_one_was_away_is_no_silence_of_the_other() -> None:
    assert forgiven(10.0, due=12.0, now=12.0) == 10.0
    assert forgiven(10.0, due=12.0, now=17.0) == 15.0
    assert forgiven(16.5, due=12.0, now=17.0) == 17.0, "heard while the look was due"


@given(SECONDS, SECONDS, SECONDS)
def test_nobody_is_heard_in_the_future_or_earlier_than_he_was(last: float, due: float, now: float) -> None:
    last = min(last, now)
    assert last <= forgiven(last, due, now) <= now
