"""Gets the copy of a tree in which this node's ranks run (``--ship``): one that is here, or a new one.

A new copy takes from other copies what they share, and asks the runner for the rest. All this is done in steps of a
few milliseconds, between which the agent answers its runner. `bireme.ship.messages` has the conversation.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque

from bireme.errors import BiremeError, ProtocolError
from bireme.resources.cache import cache_folder
from bireme.ship import manifest
from bireme.ship.messages import Need, Shipped, Taken
from bireme.ship.store import NEWEST, TreeStore
from bireme.ship.tree import HeldTree, NewTree, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Literal

    from bireme.control.messages import Ask, Message
    from bireme.loop import Loop
    from bireme.planning.start import NodePlan
    from bireme.ship.manifest import Entry, Manifest
    from bireme.ship.tree import Stamp

_STEP = 0.01
"""Seconds of work after which the loop may do something else."""
_PAUSE = 0.0005
_CLEAN_AFTER = 1.0
"""Seconds after which old copies are removed, when the ranks have started."""
_GRANT = 512 * 1024
"""Bytes that are taken before the runner is granted as many."""


class TreeTaker:
    """Gets the copy of one tree.

    Args:
        loop: the event loop.
        ask: the message that offers the tree.
        environ: the agent's environment.
        send: sends a message to the runner.
        on_done: called with the message as it is in the copy, and with "" or the reason why there is no copy.
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
        self._asked = False
        self._text = bytearray()
        self._taken, self._granted = 0, loop.now()
        self._new: NewTree | None = None
        self._held: HeldTree | None = None
        self._missing: deque[int] = deque()
        self._duplicates: list[tuple[int, int]] = []
        self._file = -1
        self._left = 0
        self._digest = hashlib.sha256()
        self._failed = False

    def start(self) -> None:
        """Look for a copy that is here already."""
        self._go(self._look())

    @property
    def keep(self) -> tuple[int, ...]:
        """The descriptors to hold as long as ranks run in the copy."""
        return () if self._held is None else (self._held.lock,)

    def close(self) -> None:
        """Remove what is not complete."""
        self._expects = "nothing"
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._new is not None:
            self._new.close()
            self._new = None

    # -- steps -----------------------------------------------------------------------------------

    def _go(self, steps: Iterator[None]) -> None:
        end = self._loop.now() + _STEP
        try:
            for _ in steps:
                if self._loop.now() >= end:
                    self._loop.after(_PAUSE, lambda: self._go(steps))
                    return
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
        self._loop.after(_CLEAN_AFTER, self._clean)
        self._on_done(ask, problem)

    def _clean(self) -> None:
        try:
            self._go_quietly(TreeStore(self._folder).remove_old())
        except OSError:
            pass

    def _go_quietly(self, steps: Iterator[None]) -> None:
        """Do one step, and the next one later; what cannot be cleaned up is left."""
        try:
            next(steps)
        except (StopIteration, OSError):
            return
        self._loop.after(_PAUSE, lambda: self._go_quietly(steps))

    def _look(self) -> Iterator[None]:
        """Find a copy that is here already, or ask what there is to copy."""
        store = TreeStore(self._folder)
        yield from store.remove_temporary()
        self._held = yield from store.find(self._offer.digest, self._offer.job)
        if self._held is not None:
            self._end()
        else:
            self._want("manifest", Need(cache=store.identity()))

    def look_again(self) -> None:
        """Look again: another node that shares the folder has made a copy, or could not.

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
        if self._taken >= _GRANT or now - self._granted > self._ask.heartbeat / 16:  # which is also a sign of life
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
            place = self._missing[0]
            entry = self._new.manifest.entries[place]
            if self._file < 0:
                self._file, self._left, self._digest = self._new.open(place), entry.size, hashlib.sha256()
            part = left[: self._left]
            left = left[len(part) :]
            self._digest.update(part)
            self._left -= write_all(self._file, part)
            if not self._left:
                self._complete(self._new, place, entry)
        if not self._missing:
            self._expects = "nothing"
            self._go(self._finish(self._new))

    def _complete(self, new: NewTree, place: int, entry: Entry) -> None:
        if self._digest.hexdigest() != entry.content:
            raise manifest.ManifestError(f"{entry.path} has changed since the job began; start the job again")
        file, self._file = self._file, -1
        new.close_file(place, file)
        self._missing.popleft()

    # -- the new copy ----------------------------------------------------------------------------

    def _make(self, wanted: Manifest) -> Iterator[None]:
        """Begin a copy: take what other copies have, and ask for the rest."""
        store = TreeStore(self._folder)
        yield from store.remove_old()  # not only afterwards: a job may end too early for that, and there must be room
        new = self._new = NewTree(store.folder, wanted)
        new.make_folders()
        others = [held for held in map(store.hold, store.names()[:NEWEST]) if held is not None]
        try:
            known = _by_content(others)
            first: dict[str, int] = {}
            for place, entry in enumerate(wanted.entries):
                if entry.kind != "file":
                    continue
                if not entry.size:
                    new.close_file(place, new.open(place))
                elif entry.content in first:
                    self._duplicates.append((place, first[entry.content]))
                else:
                    first[entry.content] = place
                    path, stamp = known.get(entry.content, ("", ()))
                    if not path or not (yield from new.copy(place, path, stamp)):
                        self._missing.append(place)
                if place % 64 == 0:
                    yield
        finally:
            for held in others:
                held.release()
        if self._missing:
            self._want("files", Need(spans=_spans(self._missing)))
        else:
            yield from self._finish(new)

    def _finish(self, new: NewTree) -> Iterator[None]:
        for place, original in self._duplicates:
            yield from new.duplicate(place, original)
        self._held, self._new = new.finish(), None
        self._held.note(self._offer.job)
        self._end()

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


def _by_content(copies: Sequence[HeldTree]) -> dict[str, tuple[str, Stamp]]:
    """The path and the stamp of a file of each content that these copies have."""
    found: dict[str, tuple[str, Stamp]] = {}
    for held in copies:
        for entry, stamp in zip(held.manifest.entries, held.stamps, strict=True):
            if entry.kind == "file":
                found.setdefault(entry.content, (f"{held.path}/{entry.path}", stamp))
    return found


def _spans(places: Sequence[int]) -> tuple[int, ...]:
    """The first and the last place plus 1 of each run of places."""
    spans: list[int] = []
    for place in places:
        if spans and spans[-1] == place:
            spans[-1] = place + 1
        else:
            spans += [place, place + 1]
    return tuple(spans)
