"""What counts as silence. Real halts are in ``tests/cluster/test_losses.py``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bireme.control.silence import Silence

SECONDS = st.floats(0, 1000)


def test_what_one_was_away_is_no_silence_of_the_other() -> None:
    silence = Silence(10.0)
    assert silence.look(due=12.0, now=12.0) == 2.0
    assert silence.look(due=14.0, now=19.0) == 4.0, "five seconds late"
    assert silence.look(due=21.0, now=22.0) == 6.0 and silence.since == 10.0
    assert silence.lasted(23.0) == 7.0
    silence.broken(23.5)
    assert silence.lasted(24.0) == 0.5
    assert silence.look(due=23.0, now=25.0) == 0.0, "heard while the look was due"
    assert silence.lasted(26.0) == 1.0


@given(st.lists(st.tuples(SECONDS, SECONDS, st.booleans())))
def test_it_is_never_longer_than_it_was_nor_less_than_nothing(looks: list[tuple[float, float, bool]]) -> None:
    silence = Silence(0.0)
    now = 0.0
    for wait, late, heard in looks:
        due, now = now + wait, now + wait + late
        if heard:
            silence.broken(due + late / 2)
        assert -1e-6 <= silence.look(due, now) <= now - silence.since + 1e-6
