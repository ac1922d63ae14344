"""Who failed first, and what is the job's exit code. Pure: ends and causes in, an outcome out."""

from __future__ import annotations

from bireme.errors import INTERNAL, LOST, OK, READER_GONE, TIME_LIMIT, TOO_FEW, UNFIT
from bireme.result.outcome import Outcome, RankEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from bireme.result.outcome import Cause


class Verdict:
    """Collects what happens to a job, with the second at which it happened, on one clock.

    The earliest cause stays, in whichever order the news of it arrive: what comes after is its consequence.
    A rank that ends after its node was told to stop is no cause.
    """

    def __init__(self) -> None:
        self.cause: Cause = "ok"
        self.signum = 0
        self.note = ""
        self.hosts: tuple[str, ...] = ()
        self._when = float("inf")
        self._first_rank: int | None = None
        self._planned: tuple[int, ...] = ()
        self._ends: dict[int, RankEnd] = {}
        self._ended_at: dict[int, float] = {}

    def planned(self, ranks: Iterable[int]) -> None:
        """These ranks are to run: the job is a success only if each was seen to end with 0."""
        self._planned = tuple(ranks)

    @property
    def stopping(self) -> bool:
        """Whether a cause to end the job is known."""
        return self.cause != "ok"

    def end(self, end: RankEnd, when: float) -> bool:
        """A rank has ended; return whether this is news that ends the job."""
        self._ends[end.rank], self._ended_at[end.rank] = end, when
        if end.code == OK or end.stopped:
            return False
        return self._blame("rank failed", when, rank=end.rank)

    def blame(self, cause: Cause, when: float, *, signum: int = 0, note: str = "", hosts: tuple[str, ...] = ()) -> bool:
        """Something else ends the job; return whether this is news that does."""
        return self._blame(cause, when, signum=signum, note=note, hosts=hosts)

    def _blame(
        self,
        cause: Cause,
        when: float,
        *,
        rank: int | None = None,
        signum: int = 0,
        note: str = "",
        hosts: tuple[str, ...] = (),
    ) -> bool:
        news = not self.stopping
        if when < self._when:
            self.cause, self._when, self._first_rank, self.signum, self.note = cause, when, rank, signum, note
            self.hosts = hosts
        return news

    def detail(self, rank: int, text: str) -> None:
        """What a rank that has ended said last."""
        self._ends[rank] = self._ends[rank].replace(detail=text)

    @property
    def first(self) -> RankEnd | None:
        """The rank that failed first, if that is what ended the job."""
        return None if self._first_rank is None else self._ends[self._first_rank]

    @property
    def failed(self) -> tuple[RankEnd, ...]:
        """The ranks that failed by themselves, the first at first."""
        failed = [end for end in self._ends.values() if end.code != OK and not end.stopped]
        return tuple(sorted(failed, key=lambda end: self._ended_at[end.rank]))

    @property
    def swept_along(self) -> tuple[RankEnd, ...]:
        """The ranks that were stopped since another had failed.

        Whose fault it was they may know better than the one that was first to end: when a rank runs out of memory, its
        peers miss it, and may be dead before it has cleared away what it held.
        """
        ends = self._ends.values() if self.cause == "rank failed" else ()
        return tuple(end for end in ends if end.code != OK and end.stopped)

    def outcome(
        self, *, seconds: float, killed: int, stuck: tuple[str, ...] = (), logs: tuple[str, ...] = ()
    ) -> Outcome:
        """The job's end, as far as it is known now."""
        unseen = [str(rank) for rank in self._planned if rank not in self._ends]
        if unseen and not self.stopping:
            self.blame("agent lost", float("-inf"), note=f"nobody saw how rank {', '.join(unseen)} ended")
        first = self.first
        code = first.code if first is not None else self._own_code()
        ends = tuple(self._ends[rank] for rank in sorted(self._ends))
        return Outcome(
            code, self.cause, seconds, ends, first, self.signum, killed, stuck, logs, self.note, hosts=self.hosts
        )

    def _own_code(self) -> int:
        """The code of a cause that is not a rank's end."""
        if self.cause == "signal":
            return 128 + self.signum
        codes: dict[Cause, int] = {
            "ok": OK,
            "agent lost": LOST,
            "unfit": UNFIT,
            "membership": LOST,  # never a job's end: another epoch follows
            "too few nodes": TOO_FEW,
            "reader gone": READER_GONE,
            "time limit": TIME_LIMIT,
            "internal error": INTERNAL,
        }
        return codes[self.cause]
