"""The measured offset of a node's clock, with simulated clocks that drift and step."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bireme.cluster.agent_handle import PeerClock

SECONDS = st.floats(0, 1e6)
TRIPS = st.tuples(st.floats(0, 100), st.floats(0, 2), st.floats(0, 2))  # a pause, there, and back
ROUNDING = 1e-6
DOUBT = 0.001  # by which trips may contradict each other


def ask(clock: PeerClock, when: float, there: float, back: float, offset: float) -> float:
    """One round trip; return the time after it."""
    clock.measure(when, when + there + offset, when + there + back)
    return when + there + back


@given(SECONDS, st.floats(-1e6, 1e6), st.lists(TRIPS, min_size=1))
def test_it_is_half_the_shortest_trip_away_at_most(
    when: float, offset: float, trips: list[tuple[float, float, float]]
) -> None:
    clock = PeerClock()
    for pause, there, back in trips:
        when = ask(clock, when + pause, there, back, offset)
    shortest = min(there + back for _, there, back in trips)
    assert abs(clock.offset - offset) <= shortest / 2 + ROUNDING


@given(SECONDS, st.floats(-1e6, 1e6), st.floats(-1e4, 1e4), st.lists(TRIPS, min_size=1), st.lists(TRIPS, min_size=1))
@example(0.0, 0.0, 0.5, [(0.0, 0.0, 0.0)], [(0.0, 0.0, 0.5), (0.0, 2.0, 0.0)])
def test_after_a_step_it_is_measured_anew(
    when: float,
    offset: float,
    step: float,
    before: list[tuple[float, float, float]],
    after: list[tuple[float, float, float]],
) -> None:
    """Whichever of the two clocks has stepped, and however well the offset was known.

    The trip that contradicts what was known may be the longest one: it counts until a shorter one follows.
    """
    clock = PeerClock()
    for pause, there, back in before:
        when = ask(clock, when + pause, there, back, offset)
    for pause, there, back in after:
        when = ask(clock, when + pause, there, back, offset + step)
    known, shortest = (min(there + back for _, there, back in trips) for trips in (before, after))
    longest = max(there + back for _, there, back in after)
    assert abs(clock.offset - offset - step) <= max(shortest + known / 2, longest / 2) + DOUBT + ROUNDING


@given(SECONDS, st.floats(1e-6, 1e-4), st.floats(1e-4, 1e-2))
def test_clocks_that_drift_apart(when: float, drift: float, trip: float) -> None:
    """In days, these are seconds."""
    clock, offset = PeerClock(), 0.0
    for _ in range(1000):
        offset += drift * 100
        when = ask(clock, when + 100, trip / 2, trip / 2, offset)
        assert abs(clock.offset - offset) <= trip + drift * 100 + DOUBT + ROUNDING


def test_our_own_clock_steps_while_we_ask() -> None:
    """Such a trip seems to be long, and tells nothing; the next one does."""
    clock = PeerClock()
    ask(clock, 10.0, 0.001, 0.001, 500.0)
    clock.measure(20.0, 520.001, 80.002)
    assert abs(clock.offset - 500.0) < 0.01
    ask(clock, 81.0, 0.002, 0.002, 440.0)
    assert abs(clock.offset - 440.0) < 0.01


def test_their_time_on_our_clock() -> None:
    clock = PeerClock()
    assert clock.to_ours(1e9, now=5.0) == 5.0, "nothing is known yet: it is not in the future"
    ask(clock, 10.0, 0.5, 0.5, 1000.0)
    assert clock.to_ours(1012.0, now=15.0) == 12.0
    assert clock.to_ours(1020.0, now=15.0) == 15.0
