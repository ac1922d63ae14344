"""Decides what ended a job, which rank failed first, and the job's exit code. Pure: ends and causes in, outcome out."""

from __future__ import annotations

from bireme.errors import OK
from bireme.result.outcome import CODES, Outcome, RankEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from bireme.result.outcome import Cause


class Verdict:
    """Collects the events of a job with their times, on one clock, and keeps the earliest cause of its end.

    News may arrive in any order. Whatever happened after the earliest cause counts as its consequence. A rank that ends
    after its node was told to stop is not a cause.
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
        """Note which ranks will run: the job succeeds only if each is seen to end with 0."""
        self._planned = tuple(ranks)

    @property
    def stopping(self) -> bool:
        """Whether a cause to end the job is known."""
        return self.cause != "ok"

    @property
    def unended(self) -> int:
        """How many of the planned ranks have not been seen to end."""
        return len(self._planned) - len(self._ends)

    def end(self, end: RankEnd, when: float) -> bool:
        """Note a rank's end at ``when``; return whether the job must be stopped because of it."""
        self._ends[end.rank], self._ended_at[end.rank] = end, when
        if end.code == OK or end.stopped:
            return False
        return self.blame("rank failed", when, rank=end.rank)

    def blame(
        self,
        cause: Cause,
        when: float,
        *,
        rank: int | None = None,
        signum: int = 0,
        note: str = "",
        hosts: tuple[str, ...] = (),
    ) -> bool:
        """Note another cause that ends the job; return whether it is the first one, so that the job must be stopped."""
        news = not self.stopping
        if when < self._when:
            self.cause, self._when, self._first_rank, self.signum, self.note = cause, when, rank, signum, note
            self.hosts = hosts
        return news

    def detail(self, rank: int, text: str) -> None:
        """Note what to quote of a rank that has ended."""
        self._ends[rank] = self._ends[rank].replace(detail=text)

    @property
    def first(self) -> RankEnd | None:
        """The rank that failed first, if that is what ended the job."""
        return None if self._first_rank is None else self._ends[self._first_rank]

    @property
    def failed(self) -> tuple[RankEnd, ...]:
        """The ranks that failed by themselves, in the order of their ends."""
        failed = [end for end in self._ends.values() if end.code != OK and not end.stopped]
        return tuple(sorted(failed, key=lambda end: self._ended_at[end.rank]))

    @property
    def swept_along(self) -> tuple[RankEnd, ...]:
        """The ranks that were stopped because another had failed.

        The original fault may be among them: when a rank runs out of memory, its peers fail because it does not
        answer, and may end before it has freed its memory.
        """
        ends = self._ends.values() if self.cause == "rank failed" else ()
        return tuple(end for end in ends if end.code != OK and end.stopped)

    def outcome(
        self, *, seconds: float, killed: int, stuck: tuple[str, ...] = (), logs: tuple[str, ...] = ()
    ) -> Outcome:
        """The outcome of the job, once it has ended; ``killed``: how many ranks had to be killed by SIGKILL."""
        if not self.stopping:
            self._blame_the_unseen()
        first = self.first
        return Outcome(
            exit_code=first.code if first is not None else self._own_code(),
            cause=self.cause,
            seconds=seconds,
            ends=tuple(self._ends[rank] for rank in sorted(self._ends)),
            first=first,
            signum=self.signum,
            killed=killed,
            stuck=stuck,
            logs=logs,
            note=self.note,
            hosts=self.hosts,
        )

    def _blame_the_unseen(self) -> None:
        """Without a cause, the job is a success: only if each planned rank was seen to end with 0."""
        ends = {rank: self._ends.get(rank) for rank in self._planned}
        unseen = ", ".join(str(rank) for rank, end in ends.items() if end is None)
        failed = ", ".join(str(rank) for rank, end in ends.items() if end is not None and end.code != OK)
        if unseen:
            self.blame("agent lost", float("-inf"), note=f"the end of rank {unseen} was not seen")
        elif failed:
            note = f"rank {failed} was reported as stopped, but nothing had stopped it"
            self.blame("agent lost", float("-inf"), note=note)

    def _own_code(self) -> int:
        """The exit code for a cause other than a rank's failure."""
        if self.cause == "signal":
            return 128 + self.signum
        return CODES[self.cause]
