"""Who failed first, and what is the job's exit code. Pure: ends and causes in, an outcome out."""

from __future__ import annotations

from bireme.errors import LOST, OK, READER_GONE
from bireme.supervise.outcome import Outcome, RankEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.supervise.outcome import Cause


class Verdict:
    """Collects what happens to a job. The first cause stays: what comes after it is its consequence."""

    def __init__(self) -> None:
        self.cause: Cause = "ok"
        self.signum = 0
        self.note = ""
        self._first_rank: int | None = None
        self._ends: dict[int, RankEnd] = {}

    @property
    def stopping(self) -> bool:
        """Whether a cause to end the job is known."""
        return self.cause != "ok"

    def end(self, end: RankEnd) -> bool:
        """A rank has ended; return whether this is the job's first failure."""
        end = end.replace(stopped=self.stopping)
        self._ends[end.rank] = end
        if end.code == OK or self.stopping:
            return False
        self.cause, self._first_rank = "rank failed", end.rank
        return True

    def blame(self, cause: Cause, *, signum: int = 0, note: str = "") -> bool:
        """Something else ends the job; return whether it is the first cause."""
        if self.stopping:
            return False
        self.cause, self.signum, self.note = cause, signum, note
        return True

    def detail(self, rank: int, text: str, *, out_of_memory: bool) -> None:
        """What a rank that has ended said last."""
        self._ends[rank] = self._ends[rank].replace(detail=text, out_of_memory=out_of_memory)

    @property
    def first_rank(self) -> int | None:
        """The rank that failed first, if that is what ended the job."""
        return self._first_rank

    def known(self, rank: int) -> RankEnd | None:
        """How a rank ended, if it has."""
        return self._ends.get(rank)

    def outcome(
        self, *, seconds: float, killed: int, stuck: tuple[str, ...] = (), logs: tuple[str, ...] = ()
    ) -> Outcome:
        """The job's end, as far as it is known now."""
        first = None if self._first_rank is None else self._ends[self._first_rank]
        codes = {"ok": OK, "signal": 128 + self.signum, "agent lost": LOST, "reader gone": READER_GONE}
        code = first.code if first is not None else codes[self.cause]
        ends = tuple(self._ends[rank] for rank in sorted(self._ends))
        return Outcome(code, self.cause, seconds, ends, first, self.signum, killed, stuck, logs, self.note)
