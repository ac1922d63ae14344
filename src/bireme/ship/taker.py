"""Gets the tree in which this node's ranks run (``--ship``): that of the job if it is here, or a new one.

A new tree gets what is here already, and the rest from the runner. All this is done in steps of a few milliseconds,
between which the agent answers its runner. `bireme.ship.conversation` has the conversation.
"""

from __future__ import annotations

import os

from bireme.control.messages import Taken
from bireme.errors import BiremeError, ProtocolError
from bireme.resources.ownership import cache_folder
from bireme.ship import manifest
from bireme.ship.conversation import GRANT, Need, Shipped, in_steps
from bireme.ship.inside import Incoming
from bireme.ship.trees import Trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from bireme.control.messages import Ask, Message
    from bireme.loop import Loop
    from bireme.planning.start import NodePlan
    from bireme.ship.manifest import Entry, Manifest
    from bireme.ship.trees import HeldTree, NewTree

_CLEAN_AFTER = 1.0
"""Seconds after which the stock is filled, and old trees are removed, when the ranks have started."""
_GENTLE = 0.0005
"""Seconds of one step of that: a third of a core, for a second where the tree has 200 MB in 2,000 files."""
_PATIENCE = 60.0
"""Seconds to wait for another agent that makes the tree, which may be on a node whose locks outlive it."""
_LOOK = 0.05


class TreeTaker:
    """Gets the tree of one job.

    Args:
        ask: the message that offers the tree.
        on_done: called with the message as it is in the tree, and with "" or the reason why there is no tree.
    """

    def __init__(
        self,
        loop: Loop,
        ask: Ask,
        environ: Mapping[str, str],
        send: Callable[[Message], None],
        on_done: Callable[[Ask, str], None],
    ) -> None:
        assert ask.tree is not None
        self._loop, self._ask, self._offer, self._send, self._on_done = loop, ask, ask.tree, send, on_done
        self._folder = cache_folder(environ, ask.tree.cache)
        self._steps: Generator[float | None, None, None] = self._get()
        self._incoming = Incoming()
        self._due = self._taken = 0
        self._granted = loop.now()
        self._has_asked = self._is_over = False
        self._held: HeldTree | None = None
        self._wrong: int | None = None
        self._trees: Trees | None = None

    def start(self) -> None:
        """Take steps until a piece is needed that has not come."""
        in_steps(self._loop, self._steps)

    def take(self, data: bytes) -> None:
        """Take a piece of what was asked for."""
        if self._is_over:
            return  # the runner has not heard of it yet
        self._due -= len(data)
        if self._due < 0:
            raise ProtocolError("it sent a piece of a tree that was not asked for")
        self._taken += len(data)
        now = self._loop.now()
        if self._taken >= GRANT or now - self._granted > self._ask.heartbeat / 16:  # which is also a sign of life
            self._send(Taken(size=self._taken))
            self._taken, self._granted = 0, now
        self._incoming.put(data)
        if self._incoming.is_awaited:
            self.start()

    @property
    def keep(self) -> tuple[int, ...]:
        """The descriptors to hold as long as ranks run in the tree."""
        return () if self._held is None else (self._held.lock,)

    def close(self) -> None:
        """Remove what is not complete, and let go of the tree."""
        self._steps.close()
        if self._held is not None:
            os.close(self._held.lock)
        if self._trees is not None:
            self._trees.stock.close()

    # -- in steps --------------------------------------------------------------------------------

    def _get(self) -> Generator[float | None, None, None]:
        """Get the tree, answer, and tidy up while the ranks run."""
        problem = ""
        try:
            self._trees = Trees(self._folder)
            self._held = yield from self._find_or_make(self._trees)
            ask = self._moved_ask()
        except (OSError, BiremeError) as error:
            ask, why = self._ask, str(error)
            if isinstance(error, OSError):
                why = f"{error.strerror}\n--export XDG_CACHE_HOME=DIR names another place"
            problem = f"cannot make a copy of the tree in {self._folder}: {why}"
        self._is_over = True
        if self._has_asked:
            self._send(Shipped(wrong=self._wrong))
        self._on_done(ask, problem)
        if self._held is not None and self._trees is not None:
            self._steps = self._trees.tidy(self._held)
            self._loop.after(_CLEAN_AFTER, lambda: in_steps(self._loop, self._steps, _GENTLE))

    def _find_or_make(self, trees: Trees) -> Generator[float | None, None, HeldTree]:
        """The tree of the job, if it is here or another agent makes it that shares the folder; else make it."""
        job, digest, deadline = self._offer.job, self._offer.digest, self._loop.now() + _PATIENCE
        if not job.isalnum():
            raise manifest.ManifestError("its job has no name")
        new: NewTree | None = None
        try:
            while (held := trees.hold(job, digest=digest)) is None:
                if new is not None:  # and nobody has finished it meanwhile
                    yield from self._fill(trees, new)
                    return new.finish(job)
                new = yield from trees.new(job, alone=self._loop.now() >= deadline)
                if new is None:
                    yield _LOOK
            return held
        finally:
            if new is not None:
                new.close()

    def _fill(self, trees: Trees, new: NewTree) -> Iterator[float | None]:
        """Fill a tree with what is here already, and with what the runner sends."""
        wanted = trees.find_manifest(self._offer.digest) or (yield from self._receive_manifest())
        yield from trees.clean()  # not only afterwards: a job may end too early for that, and there must be room
        yield from new.begin(wanted)
        if new.missing:
            places = {entry.path: place for place, entry in enumerate(wanted.entries)}
            missing = {places[entry.path]: name for name, entry in new.missing.items()}
            self._ask_for(Need(places=tuple(missing)), sum(entry.data for entry in new.missing.values()))
            for place, name in missing.items():
                if not (yield from new.receive(name, self._incoming)):
                    self._wrong = place
                    path = manifest.shown(new.missing[name].path)
                    raise manifest.ManifestError(f"{path} has changed since the job began")

    def _receive_manifest(self) -> Generator[float | None, None, Manifest]:
        self._ask_for(Need(), self._offer.length)
        text = bytearray()
        while len(text) < self._offer.length:
            text += yield from self._incoming.take(self._offer.length)
        found = manifest.read(bytes(text))
        if found.digest != self._offer.digest:
            raise manifest.ManifestError("the manifest was altered on the way")
        return found

    def _ask_for(self, need: Need, size: int) -> None:
        self._has_asked, self._due = True, size
        self._send(need)

    # -- what is elsewhere in the copy -----------------------------------------------------------

    @property
    def sent(self) -> dict[str, Entry]:
        """What was sent, by path relative to the ranks' working directory."""
        assert self._held is not None
        below = (manifest.below(self._offer.roots, self._ask.cwd) or "").strip("/")
        above = f"{below}/" if below else ""
        entries = self._held.manifest.entries
        return {entry.path[len(above) :]: entry for entry in entries if entry.path.startswith(above)}

    def _moved(self, word: str) -> str:
        """A path, or an option with one, that leads from the copy to where the user meant; any other word as it is."""
        assert self._held is not None
        name, equals, value = word.partition("=")
        if equals and "/" not in name:
            return f"{name}={self._moved(value)}"
        path = os.path.join(self._ask.cwd, word)
        if manifest.below(self._offer.roots, path) is None:
            return word
        if ".." in word.split("/"):
            path = os.path.normpath(path)
        below = manifest.below(self._offer.roots, path)
        if below is None:
            return path
        moved = self._held.path + below
        return moved if os.path.isabs(word) and os.path.lexists(moved) else word

    def _moved_ask(self) -> Ask:
        assert self._held is not None
        spec, exports = self._ask.spec, dict(self._ask.exports)
        program, logs = spec.program, spec.rank_log_dir
        program = program.replace(target=self._moved(program.target), args=tuple(map(self._moved, program.args)))
        if "PYTHONPATH" in exports:
            exports["PYTHONPATH"] = os.pathsep.join(map(self._moved, exports["PYTHONPATH"].split(os.pathsep)))
        cwd = self._held.path + (manifest.below(self._offer.roots, self._ask.cwd) or "")
        os.makedirs(cwd, exist_ok=True)  # it may hold nothing that was sent
        return self._ask.replace(
            spec=spec.replace(
                program=program,
                python=spec.python and self._moved(spec.python),
                venv_script=spec.venv_script and self._moved(spec.venv_script),
                rank_log_dir=logs if logs is None or os.path.isabs(logs) else self._moved(logs),
            ),
            cwd=cwd,
            exports=exports,
        )

    def moved_plan(self, plan: NodePlan) -> NodePlan:
        """A plan as it is in the copy."""
        workers = tuple(worker.replace(argv=tuple(map(self._moved, worker.argv))) for worker in plan.workers)
        return plan.replace(cwd=os.getcwd(), workers=workers)
