"""How silence is measured. Real halts are in ``tests/cluster/test_losses.py``."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bireme.control.silence import BEATS, LOOKS, Silence

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


# -- both sides under a virtual clock ----------------------------------------------------------------

H = 4.0
TRIP = 0.001

Halts = list[tuple[float, float]]


class Side:
    """The runner, or an agent: it looks in beats, and does nothing while it is halted."""

    def __init__(self, halts: Halts, first_look: float) -> None:
        self.halts, self.due, self.silence = halts, first_look, Silence(0.0)
        self.inbox: list[float] = []
        self.missed: float | None = None

    def awake(self, when: float) -> float:
        """That second, or the end of the halt in which it lies."""
        for begin, stop in self.halts:
            if begin <= when < stop:
                return stop
        return when

    def read(self, now: float) -> bool:
        """Take what has arrived; return whether anything had."""
        there = [when for when in self.inbox if when <= now]
        self.inbox = [when for when in self.inbox if when > now]
        if there:
            self.silence.broken(now)
        return bool(there)

    def look(self, now: float) -> bool:
        """A beat; return whether the other is still there."""
        if self.silence.look(self.due, now) > H - 1e-9:
            self.read(now)
        if self.silence.lasted(now) > H - 1e-9:
            self.missed = now
        return self.missed is None


def simulate(runner: Side, agent: Side, until: float) -> None:
    """The runner asks at each beat, the agent answers; whoever misses the other says no more."""
    while True:
        nexts = [(side.awake(side.due), 0, side) for side in (runner, agent) if side.missed is None]
        nexts += [(side.awake(min(side.inbox)), 1, side) for side in (runner, agent) if side.inbox and not side.missed]
        now, kind, side = min(nexts, key=lambda each: each[:2], default=(until, 0, runner))
        if now >= until:
            return
        if kind == 1:
            side.read(now)
            if side is agent:
                runner.inbox.append(now + TRIP / 2)
        elif side.look(now):
            left, beat = (H - side.silence.lasted(now), H / LOOKS) if side is agent else (H, H / BEATS)
            side.due = now + max(0.001, min(left, beat))
            if side is runner:
                agent.inbox.append(now + TRIP / 2)


PHASE = st.floats(0, H / BEATS)
LENGTH = st.floats(0, 3 * H)
BEGIN = 3 * H


@given(PHASE, PHASE, LENGTH, st.floats(0, 0.68 * H), st.booleans())
@example(beat=0.0, phase=0.75, length=1.0, apart=0.68 * H, runner_first=False)  # too long for four looks of an agent
@example(beat=0.0, phase=0.75, length=10.0, apart=0.68 * H, runner_first=False)
def test_all_are_halted_and_go_on_within_a_while(
    beat: float, phase: float, length: float, apart: float, runner_first: bool
) -> None:
    """Nobody is missed, however long it was, as `docs/guarantees.md` says."""
    early, late = [(BEGIN + beat, BEGIN + beat + length)], [(BEGIN + beat, BEGIN + beat + length + apart)]
    runner = Side(early if runner_first else late, H / BEATS)
    agent = Side(late if runner_first else early, phase)
    simulate(runner, agent, BEGIN + length + 5 * H)
    assert runner.missed is agent.missed is None


@given(PHASE, PHASE, LENGTH)
def test_only_the_runner_is_halted(beat: float, phase: float, length: float) -> None:
    """For longer than the bound: it is missed, by then. For less than three quarters of it, never."""
    begin = BEGIN + beat
    runner, agent = Side([(begin, begin + length)], H / BEATS), Side([], phase)
    simulate(runner, agent, begin + length + 5 * H)
    if length > H + 2 * TRIP:
        assert agent.missed is not None and agent.missed <= begin + H + 2 * TRIP
    if length < 0.75 * H - 2 * TRIP:
        assert agent.missed is runner.missed is None


@given(PHASE, PHASE, LENGTH)
def test_only_the_agent_is_halted(beat: float, phase: float, length: float) -> None:
    """For longer than 1.25 of the bound: it is missed, by then. For less than the bound, never."""
    begin = BEGIN + beat
    runner, agent = Side([], H / BEATS), Side([(begin, begin + length)], phase)
    simulate(runner, agent, begin + length + 5 * H)
    if length > 1.25 * H + 2 * TRIP:
        assert runner.missed is not None and runner.missed <= begin + 1.25 * H + 2 * TRIP
    if length < H - 2 * TRIP:
        assert agent.missed is runner.missed is None


@given(st.floats(0, 20 * H))
def test_a_clock_steps(step: float) -> None:
    """It looks like a halt to whoever has that clock, and the other notices nothing: nobody is missed."""
    silence, due, now = Silence(0.0), 0.0, 0.0
    for number in range(20):
        due, now = now + H / BEATS, now + H / BEATS + (step if number == 7 else 0.0)
        assert silence.look(due, now) < H / 2
        silence.broken(now + TRIP)
