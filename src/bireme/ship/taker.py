"""Gets the tree in which this node's ranks run (``--ship``): that of the job if it is here, or a new one.

A new tree gets what is here already, and the rest from the runner. All this is done in steps of a few milliseconds,
between which the agent answers its runner. `bireme.ship.messages` has the conversation.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque

from bireme import drafts
from bireme.control.messages import Taken
from bireme.errors import BiremeError, ProtocolError
from bireme.resources.ownership import cache_folder
from bireme.ship import manifest
from bireme.ship.files import Draft
from bireme.ship.messages import GRANT, Need, Shipped, Wrong, in_steps
from bireme.ship.trees import HeldTree, NewTree, Trees, take_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Literal

    from bireme.control.messages import Ask, Message
    from bireme.loop import Loop
    from bireme.planning.start import NodePlan
    from bireme.ship.manifest import Entry, Manifest

_CLEAN_AFTER = 1.0
"""Seconds after which a spare tree is made, and old trees are removed, when the ranks have started."""
_PATIENCE = 60.0
"""Seconds to wait for another agent that makes the tree, which may be on a node whose locks outlive it."""
_LOOK = 0.05


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
        self._asked = self._over = False
        self._text = bytearray()
        self._taken, self._granted = 0, loop.now()
        self._turn, self._turn_path = -1, ""
        self._new: NewTree | None = None
        self._spare: NewTree | None = None
        self._held: HeldTree | None = None
        self._coming: deque[int] = deque()
        """The places in the manifest of the files that come."""
        self._file: Draft | None = None
        self._copy: Draft | None = None
        """A copy of it for the spare tree."""

    def start(self) -> None:
        """Look for a tree that is here already."""
        in_steps(self._loop, self._or_fail(self._look()))

    @property
    def keep(self) -> tuple[int, ...]:
        """The descriptors to hold as long as ranks run in the tree."""
        return () if self._held is None else (self._held.lock,)

    def close(self) -> None:
        """Remove what is not complete."""
        self._over, self._expects = True, "nothing"
        self._drop_spare()
        if self._file is not None:
            self._file.drop()
        if self._new is not None:
            self._new.close()
        if self._turn >= 0:
            os.close(self._turn)
            drafts.remove(self._turn_path)
        self._file, self._new, self._turn = None, None, -1

    @property
    def sent(self) -> dict[str, Entry]:
        """What was sent, by path relative to the ranks' working directory."""
        assert self._held is not None
        below = self._ask.cwd[len(self._offer.roots[0].rstrip("/")) :].lstrip("/")
        above = f"{below}/" if below else ""
        entries = self._held.manifest.entries
        return {entry.path[len(above) :]: entry for entry in entries if entry.path.startswith(above)}

    # -- steps -----------------------------------------------------------------------------------

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
        self.close()
        if self._asked:
            self._send(Shipped())
        self._on_done(ask, problem)

    def _look(self) -> Iterator[None]:
        """Find the tree of the job, or its manifest, or ask for that."""
        if not self._offer.job.isalnum():
            raise manifest.ManifestError("its job has no name")
        trees = Trees(self._folder)
        if not self._has_tree(trees):
            yield
            self._turn, self._turn_path = trees.turn(self._offer.job)
            wanted = trees.find_manifest(self._offer.digest)
            if wanted is None:
                self._want("manifest", Need())
            else:
                self._await_turn(wanted, self._loop.now() + _PATIENCE)

    def _has_tree(self, trees: Trees) -> bool:
        """Whether the tree of the job is here. Then all is done."""
        held = trees.hold(self._offer.job)
        if held is not None and held.manifest.digest != self._offer.digest:
            held.release()
        elif held is not None:
            self._held = held
            self._end()
        return self._held is not None

    def _await_turn(self, wanted: Manifest, deadline: float) -> None:
        """Make the tree, unless another agent does so that shares the folder: then wait for it, or until it dies."""
        if self._over:
            return
        if take_lock(self._turn, fcntl.LOCK_EX) is not False or self._loop.now() >= deadline:
            in_steps(self._loop, self._or_fail(self._make(wanted)))
        else:
            self._loop.after(_LOOK, lambda: self._await_turn(wanted, deadline))

    def _make(self, wanted: Manifest) -> Iterator[None]:
        """Begin a tree with what is here already, and ask for the rest."""
        trees = Trees(self._folder)
        if self._has_tree(trees):
            return
        yield from trees.clean()  # not only afterwards: a job may end too early for that, and there must be room
        new = self._new = NewTree(trees.folder, wanted)
        yield from trees.take(new)
        self._coming.extend(place for place, entry in enumerate(wanted.entries) if entry.path in new.missing)
        if self._coming:
            self._spare = trees.new_spare(wanted)
            try:
                if self._spare is not None:
                    yield from trees.begin_spare(self._spare)
            except OSError:
                self._drop_spare()
            self._want("files", Need(spans=_spans(self._coming)))
        else:
            yield from self._finish(new)

    def _finish(self, new: NewTree) -> Iterator[None]:
        yield
        trees = Trees(self._folder)
        has_spare = self._spare is not None and not self._spare.missing
        if self._spare is not None:
            trees.put_spare(self._spare)
            self._spare = None
        self._held, self._new = trees.finish(new, self._offer.job), None
        self._end()
        tidy = _tidy(trees, self._held, has_spare)
        self._loop.after(_CLEAN_AFTER, lambda: in_steps(self._loop, tidy, most=0.0))  # ranks run

    # -- what the runner sends -------------------------------------------------------------------

    def _want(self, what: Literal["manifest", "files"], need: Need) -> None:
        self._asked, self._expects = True, what
        self._send(need)

    def take(self, data: bytes) -> None:
        """Take a piece of what was asked for."""
        if self._over:
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
        if len(self._text) >= self._offer.length:
            self._expects = "nothing"
            found = manifest.read(bytes(self._text))
            if found.digest != self._offer.digest:
                raise manifest.ManifestError("the manifest was altered on the way")
            self._await_turn(found, self._loop.now() + _PATIENCE)

    def _take_content(self, data: bytes) -> None:
        assert self._new is not None
        new, left = self._new, memoryview(data)
        while left:
            if not self._coming:
                raise manifest.ManifestError("more was sent than asked for")
            entry = new.manifest.entries[self._coming[0]]
            try:
                self._file = self._file or Draft(new.top, entry.path, entry)
                part = left[: self._file.due]
                self._file.take(part)
            except OSError:
                if self._spare is None:
                    raise
                self._drop_spare()  # there may be room without it
                continue
            self._take_for_spare(entry, part)
            left = left[len(part) :]
            if not self._file.due:
                place = self._coming.popleft()
                if not self._file.is_right:
                    self._send(Wrong(place=place))
                    raise manifest.ManifestError(f"{manifest.shown(entry.path)} has changed since the job began")
                self._file.close(entry.mode)
                self._file = None
        if not self._coming:
            self._expects = "nothing"
            in_steps(self._loop, self._or_fail(self._finish(new)))

    def _take_for_spare(self, entry: Entry, part: memoryview) -> None:
        """Write what comes to the spare tree too, as nobody can change it yet."""
        if self._spare is None or entry.path not in self._spare.missing:
            return
        try:
            if self._copy is None:
                self._copy = Draft(self._spare.top, entry.path, entry.replace(content=""))
            self._copy.take(part)
            if not self._copy.due:
                self._copy.close(entry.mode)
                self._copy = None
                self._spare.complete(entry)
        except OSError:
            self._drop_spare()

    def _drop_spare(self) -> None:
        if self._copy is not None:
            self._copy.drop()
        if self._spare is not None:
            self._spare.close()
        self._copy = self._spare = None

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


def _tidy(trees: Trees, held: HeldTree, has_spare: bool) -> Iterator[None]:
    """Make a spare tree for the next job, and remove old trees, as far as that can be done."""
    try:
        if not has_spare:
            yield from trees.complete_spare(held)
        yield from trees.clean()
    except (OSError, BiremeError):
        pass


def _spans(places: Iterable[int]) -> tuple[int, ...]:
    """The first and the last place plus 1 of each run of places."""
    spans: list[int] = []
    for place in places:
        if spans and spans[-1] == place:
            spans[-1] = place + 1
        else:
            spans += [place, place + 1]
    return tuple(spans)
