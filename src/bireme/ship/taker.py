"""Gets the tree in which this node's ranks run (``--ship``): that of the job if it is here, a spare one, or a new one.

A new tree takes from older ones what they share, and asks the runner for the rest. All this is done in steps of a few
milliseconds, between which the agent answers its runner. `bireme.ship.messages` has the conversation.
"""

from __future__ import annotations

import os
from collections import deque

from bireme.control.messages import Taken
from bireme.errors import BiremeError, ProtocolError
from bireme.resources.cache import cache_folder
from bireme.ship import manifest
from bireme.ship.contents import GRANT, Incoming, in_steps
from bireme.ship.messages import Need, Shipped, Wrong
from bireme.ship.store import TreeStore
from bireme.ship.tree import HeldTree, NewTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Literal

    from bireme.control.messages import Ask, Message
    from bireme.loop import Loop
    from bireme.planning.start import NodePlan
    from bireme.ship.manifest import Entry, Manifest

_PAUSE = 0.0005
_CLEAN_AFTER = 1.0
"""Seconds after which a spare tree is made, and old ones are removed, when the ranks have started."""


class TreeTaker:
    """Gets the tree of one job.

    Args:
        loop: the event loop.
        ask: the message that offers the tree.
        environ: the agent's environment.
        send: sends a message to the runner.
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
        self._expects: Literal["nothing", "manifest", "files"] = "nothing"
        self._asked = self._failed = self._made = False
        self._text = bytearray()
        self._taken, self._granted = 0, loop.now()
        self._new: NewTree | None = None
        self._spare: NewTree | None = None
        self._held: HeldTree | None = None
        self._missing: deque[int] = deque()
        self._is_first = False
        self._file: Incoming | None = None

    def start(self) -> None:
        """Look for a tree that is here already."""
        self._go(self._look())

    @property
    def keep(self) -> tuple[int, ...]:
        """The descriptors to hold as long as ranks run in the tree."""
        return () if self._held is None else (self._held.lock,)

    def close(self) -> None:
        """Remove what is not complete."""
        self._expects = "nothing"
        if self._file is not None and self._file.fd is not None:
            os.close(self._file.fd)
            self._file = None
        for new in (self._new, self._spare):
            if new is not None:
                new.close()
        self._new = self._spare = None

    @property
    def sent(self) -> dict[str, Entry]:
        """What was sent, by path relative to the ranks' working directory."""
        assert self._held is not None
        below = self._ask.cwd[len(self._offer.roots[0].rstrip("/")) :].lstrip("/")
        above = f"{below}/" if below else ""
        entries = self._held.manifest.entries
        return {entry.path[len(above) :]: entry for entry in entries if entry.path.startswith(above)}

    # -- steps -----------------------------------------------------------------------------------

    def _go(self, steps: Iterator[None]) -> None:
        in_steps(self._loop, self._or_fail(steps))

    def _or_fail(self, steps: Iterator[None]) -> Iterator[None]:
        try:
            yield from steps
        except (OSError, BiremeError) as error:
            self._fail(error)

    def _fail(self, error: OSError | BiremeError) -> None:
        self.close()
        why = str(error)
        if isinstance(error, OSError):
            why = f"{error.strerror}\n--export XDG_CACHE_HOME=DIR names another place"
        self._end(f"cannot make a copy of the tree in {self._folder}: {why}")

    def _end(self, problem: str = "") -> None:
        ask = self._ask if problem else self._moved_ask()
        self._failed = bool(problem)
        if self._asked:
            self._send(Shipped())
        if not problem:
            self._loop.after(_CLEAN_AFTER, lambda: self._go_quietly(self._tidy()))
        self._on_done(ask, problem)

    def _go_quietly(self, steps: Iterator[None]) -> None:
        """Do one step, and the next one later; what cannot be done is left."""
        try:
            next(steps)
        except (StopIteration, OSError, BiremeError):
            return
        self._loop.after(_PAUSE, lambda: self._go_quietly(steps))

    def _look(self) -> Iterator[None]:
        """Find a tree that is here already, or ask what there is to copy."""
        store = TreeStore(self._folder)
        if not self._offer.job.isalnum():
            raise manifest.ManifestError("its job has no name")
        self._held = yield from store.find(self._offer.digest, self._offer.job)
        if self._held is not None:
            self._made = not self._asked
            self._end()
        else:
            self._want("manifest", Need(cache=store.identity()))

    def look_again(self) -> None:
        """Look again: another node that shares the folder has made the tree, or could not.

        Raises:
            ProtocolError: the manifest has come already.
        """
        if self._expects != "manifest" or self._text:
            raise ProtocolError("it told an agent that takes a tree to look again")
        self._expects = "nothing"
        self._go(self._look())

    def _want(self, what: Literal["manifest", "files"], need: Need) -> None:
        self._asked, self._expects = True, what
        self._send(need)

    # -- what the runner sends -------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Take a piece of what was asked for.

        Raises:
            ProtocolError: nothing was asked for.
        """
        if self._failed:
            return  # the runner has not heard of it yet
        self._taken += len(data)
        now = self._loop.now()
        if self._taken >= GRANT or now - self._granted > self._ask.heartbeat / 16:  # which is also a sign of life
            self._send(Taken(size=self._taken))
            self._taken, self._granted = 0, now
        try:
            if self._expects == "manifest":
                self._take_manifest(data)
            elif self._expects == "files":
                self._take_content(data)
            else:
                raise ProtocolError("it sent a piece of a tree that was not asked for")
        except (OSError, manifest.ManifestError) as error:
            self._fail(error)

    def _take_manifest(self, data: bytes) -> None:
        self._text += data
        if len(self._text) < self._offer.length:
            return
        self._expects = "nothing"
        found = manifest.read(bytes(self._text))
        if found.digest != self._offer.digest:
            raise manifest.ManifestError("the manifest was altered on the way")
        self._go(self._make(found))

    def _take_content(self, data: bytes) -> None:
        assert self._new is not None
        left = memoryview(data)
        while left:
            if not self._missing:
                raise manifest.ManifestError("more was sent than asked for")
            entry = self._new.manifest.entries[self._missing[0]]
            if self._file is None:
                self._file = Incoming(entry, self._new.open(entry))
            part = left[: self._file.due]
            self._file.take(part)
            left = left[len(part) :]
            if not self._file.due:
                self._complete(self._new, self._file)
        if not self._missing:
            self._expects = "nothing"
            self._go(self._finish(self._new))

    def _complete(self, new: NewTree, file: Incoming) -> None:
        place = self._missing.popleft()
        if not file.is_right:
            self._send(Wrong(place=place))
            raise manifest.ManifestError(f"{file.entry.path} has changed since the job began")
        assert file.fd is not None
        new.close_file(file.entry, file.fd)
        self._file = None

    # -- the new tree ----------------------------------------------------------------------------

    def _make(self, wanted: Manifest) -> Iterator[None]:
        """Begin a tree: take what older ones have, and ask for the rest."""
        store = TreeStore(self._folder)
        yield from store.remove_temporary()
        yield from store.remove_old()  # not only afterwards: a job may end too early for that, and there must be room
        new = self._new = yield from store.base(wanted)
        yield from store.fill(new)
        self._missing.extend(place for place, entry in enumerate(wanted.entries) if new.lacks(entry))
        if self._missing:
            self._is_first = len(self._missing) == sum(entry.data > 0 for entry in wanted.entries)
            self._want("files", Need(spans=_spans(self._missing)))
        else:
            yield from self._finish(new)

    def _finish(self, new: NewTree) -> Iterator[None]:
        store = TreeStore(self._folder)
        if self._is_first:  # else it is made while ranks run, unless they end at once
            yield from self._make_spare(store, new)
        self._held, self._new = store.finish(new, self._offer.job), None
        self._made = True
        self._end()

    def _make_spare(self, store: TreeStore, other: HeldTree | NewTree) -> Iterator[None]:
        """Make a spare tree, as far as there is room."""
        try:
            self._spare = NewTree(store.folder, other.manifest)
            yield from self._spare.copy_from(other)
            yield from store.keep_spare(self._spare)
        except OSError:
            if self._spare is not None:
                self._spare.close()
        self._spare = None

    def _tidy(self) -> Iterator[None]:
        """Make a spare tree for the next job, unless there is one, or another node makes it; and remove old ones."""
        store, held = TreeStore(self._folder), self._held
        assert held is not None
        if self._made and not store.has_spare(held.manifest.digest):
            yield from self._make_spare(store, held)
        yield from store.remove_temporary()
        yield from store.remove_old()

    # -- what is elsewhere in the copy -----------------------------------------------------------

    def _moved(self, word: str) -> str:
        """A path, or an option with one, that leads from the copy to where the user meant; any other word as it is."""
        assert self._held is not None
        name, equals, value = word.partition("=")
        if equals and "/" not in name:
            return f"{name}={self._moved(value)}"
        path = os.path.join(self._ask.cwd, word)
        if self._below(path) is None:
            return word
        if ".." in word.split("/"):
            path = os.path.normpath(path)
        below = self._below(path)
        if below is None:
            return path
        moved = self._held.path + below
        return moved if os.path.isabs(word) and os.path.lexists(moved) else word

    def _below(self, path: str) -> str | None:
        """What follows the path of the tree in this path; ``None``: it is elsewhere."""
        for root in self._offer.roots:
            if f"{path}/".startswith(f"{root.rstrip('/')}/"):
                return path[len(root.rstrip("/")) :]
        return None

    def _moved_ask(self) -> Ask:
        assert self._held is not None
        spec, exports = self._ask.spec, dict(self._ask.exports)
        program, logs = spec.program, spec.rank_log_dir
        program = program.replace(target=self._moved(program.target), args=tuple(map(self._moved, program.args)))
        if "PYTHONPATH" in exports:
            exports["PYTHONPATH"] = os.pathsep.join(map(self._moved, exports["PYTHONPATH"].split(os.pathsep)))
        cwd = self._held.path + self._ask.cwd[len(self._offer.roots[0].rstrip("/")) :]
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


def _spans(places: Sequence[int]) -> tuple[int, ...]:
    """The first and the last place plus 1 of each run of places."""
    spans: list[int] = []
    for place in places:
        if spans and spans[-1] == place:
            spans[-1] = place + 1
        else:
            spans += [place, place + 1]
    return tuple(spans)
