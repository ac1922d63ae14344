"""Fetches files from the nodes at the end of a job (``--fetch``): decides which, and writes what the agents send.

`bireme.ship.conversation` has the conversation. What the agents say is checked: a name that was not asked for, or more
contents than that, is a `ProtocolError` and costs the node. Each folder here is opened by itself, without following a
link that is in its place, and a file is a draft until it is complete.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter, deque

from bireme import drafts
from bireme.control.messages import Fetch, Taken, Want
from bireme.errors import BiremeError, ProtocolError, counted
from bireme.resources.pool import listed
from bireme.ship import inside
from bireme.ship.conversation import GRANT, MOST, WINDOW
from bireme.ship.fetch_sender import first_match, parse
from bireme.ship.manifest import shown
from bireme.ship.source import as_text
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from typing import Literal, TypeAlias

    from bireme.control.messages import Piece
    from bireme.ship.conversation import Digests, Found, Skipped
    from bireme.ship.manifest import Entry
    from bireme.ship.source import Receiver

    Here: TypeAlias = Literal["nothing", "same", "older", "newer"]

_NODES_AT_ONCE = 16
_HEAVIEST = 64 << 20
"""About the bytes that the names of one node's files may take."""
_SAID = 5
"""Problems that are shown one by one."""


_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors after which no other file can be written either."""


class HomeError(BiremeError):
    """A file cannot be written, but others may."""


class _SkippedError(HomeError):
    """The node cannot send the rest of a file."""


_CANNOT = (OSError, HomeError, ValueError, OverflowError)


class Coming(Value):
    """A file that comes: its place at its node, and the path below a folder of the user where it goes."""

    place: int
    file: Entry
    base: str
    path: str

    @property
    def target(self) -> str:
        """Where it goes."""
        return os.path.join(self.base, self.path)

    def here(self) -> Here:
        """What there is already."""
        try:
            here = os.lstat(self.target)
        except OSError:
            return "nothing"
        if self.file.kind == "link":
            same = stat.S_ISLNK(here.st_mode) and os.readlink(self.target) == self.file.content
        else:
            same = stat.S_ISREG(here.st_mode) and (here.st_size, here.st_mtime_ns) == (self.file.size, self.file.mtime)
        return "same" if same else "newer" if here.st_mtime_ns > self.file.mtime else "older"


class HomeDraft:
    """A draft of a file here, which gets its name by :meth:`finish`."""

    def __init__(self, coming: Coming) -> None:
        self._coming, self._name, self._fd = coming, f".{os.urandom(8).hex()}.tmp", -1
        below = os.path.dirname(coming.path)
        os.makedirs(coming.base, exist_ok=True)
        with inside.Descriptor(os.open(coming.base, os.O_RDONLY | os.O_DIRECTORY)) as top:
            try:
                self._home = inside.open_folder(top, below, make=True)
            except NotADirectoryError:  # also for a link
                raise HomeError(f"a part of {os.path.join(coming.base, below)} is a link or a file here") from None
        try:
            self._fd = inside.create(self._home, self._name, coming.file.replace(mode=0o600))
        except (OSError, ValueError):
            os.close(self._home)
            raise

    def write(self, data: memoryview, at: int) -> None:
        """Write data to this place."""
        inside.write(self._fd, data, at)

    def finish(self, umask: int, written: set[tuple[int, int]]) -> None:
        """Give it its permissions, time and name.

        Args:
            written: the devices and inodes of the files that have come; of this one too.
        """
        file, name = self._coming.file, os.path.basename(self._coming.path)
        if self._fd >= 0:
            os.fchmod(self._fd, file.mode & ~umask)
        os.utime(self._name, ns=(file.mtime, file.mtime), dir_fd=self._home, follow_symlinks=False)
        try:
            here = os.stat(name, dir_fd=self._home, follow_symlinks=False)
            mine = (here.st_dev, here.st_ino) in written
            if mine or stat.S_ISDIR(here.st_mode) or here.st_mtime_ns > file.mtime:
                where = self._coming.target
                raise HomeError(f"{where} is another file of the job, a folder, or was changed here meanwhile")
        except FileNotFoundError:
            pass
        new = os.stat(self._name, dir_fd=self._home, follow_symlinks=False)
        os.rename(self._name, name, src_dir_fd=self._home, dst_dir_fd=self._home)
        written.add((new.st_dev, new.st_ino))

    def close(self) -> None:
        """Remove it, unless it was finished."""
        try:
            os.unlink(self._name, dir_fd=self._home)
        except OSError:
            pass
        for fd in (self._fd, self._home):
            if fd >= 0:
                os.close(fd)


class _Node:
    """What is known of one node, and what comes from it.

    Attributes:
        folder: stands before the paths of files that differ between nodes.
        asked: the places of files of which it is to send the digests.
        steps: writes the files that come.
    """

    def __init__(self, agent: Receiver, folder: str) -> None:
        self.agent, self.folder = agent, folder
        self.files: list[Entry] = []
        self.paths: set[str] = set()
        self.listed = self.shared = self.gone = False
        self.asked: deque[int] = deque()
        self.coming: deque[Coming] = deque()
        self.incoming = inside.Incoming()
        self.steps: Generator[float | None, None, None] | None = None
        self.taken = self.weight = 0

    def drop(self) -> None:
        """Keep nothing of the file that comes."""
        if self.steps is not None:
            self.steps.close()


class Fetching:
    """One run of ``--fetch``.

    Args:
        in_tree: whether ranks run in a tree of ``--ship``, of which only what is new or changed comes home.
        missing: why other nodes send none, by name.
        on_done: called with the name of a node that has sent all that is wanted of it.
        on_end: called at the end, with "" or what could not be fetched.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        agents: Iterable[Receiver],
        in_tree: bool,
        missing: Mapping[str, str],
        say: Callable[[str, str], None],
        on_done: Callable[[str], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._wanted = [*map(parse, patterns)]
        self._nodes: dict[Receiver, _Node] = {}
        for index, agent in enumerate(agents):
            name, taken = agent.name.replace("/", "_"), {node.folder for node in self._nodes.values()}
            name = f"node{index}" if name in ("", ".", "..") else name
            self._nodes[agent] = _Node(agent, name if name not in taken else f"{name}-{index}")
        self._in_tree, self._say, self._on_done, self._on_end = in_tree, say, on_done, on_end
        self._problems = [f"{name}: {why}" for name, why in missing.items()]
        self._phase: Literal["listing", "comparing", "receiving", "over"] = "listing"
        self._umask = os.umask(0o22)
        os.umask(self._umask)
        self._written: set[tuple[int, int]] = set()
        """The devices and inodes of the files that have come."""
        self._mark = ""
        self._waiting: deque[_Node] = deque()
        self._active: set[_Node] = set()
        self._came: list[tuple[str, Coming]] = []
        self._apart: list[str] = []
        self._outside: list[str] = []
        self._example = ""
        self._here = self._replaced = 0
        self._is_full = False  # no other file can be written either

    def start(self) -> None:
        """Ask every node for its files, and whether our working directory is also theirs, as over NFS."""
        if not self._in_tree:
            mark = f".bireme-{os.urandom(8).hex()}"
            try:
                os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                self._mark = mark
            except OSError:
                pass
        patterns = tuple(each.pattern for each in self._wanted)
        for node in self._nodes.values():
            node.agent.send(Fetch(patterns=patterns, mark=self._mark))
        self._go_on()

    # -- what agents say -----------------------------------------------------------------------------

    def found(self, agent: Receiver, found: Found) -> None:
        """Note which files a node has."""
        node = self._nodes[agent]
        node.weight += sum(len(file.path) + len(file.content) + 8 * len(file.parts) for file in found.files)
        if node.listed or len(node.files) > MOST or node.weight > _HEAVIEST:
            raise ProtocolError("it sent more files than there can be")
        for file in found.files:
            if file.path in node.paths or first_match(self._wanted, file.path) is None:
                raise ProtocolError(f"it sent the file {file.path[:80]!r}, which was not asked for")
            node.paths.add(file.path)
        node.files += found.files
        if found.last:
            node.listed, node.shared = True, found.shared and bool(self._mark)
            node.paths.clear()
            self._problems += [f"{agent.name}: {shown(problem)}" for problem in found.problems]
            self._example = f"{shown(found.special)} on {agent.name}" if found.special else self._example
            self._go_on()

    def digests(self, agent: Receiver, message: Digests) -> None:
        """Note the digests of a node's files."""
        node = self._nodes[agent]
        if len(message.digests) > len(node.asked):
            raise ProtocolError("it sent digests that were not asked for")
        for digest in message.digests:
            place = node.asked.popleft()
            node.files[place] = node.files[place].replace(content=digest)
        self._go_on()

    def lost(self, agent: Receiver, why: str) -> None:
        """Go on without a node."""
        node = self._nodes[agent]
        if node.gone or self._phase == "over":
            return
        node.gone = True
        left = f"; {counted(len(node.coming), 'file')} missing" if node.coming else ""
        self._problems.append(f"{agent.name}: {why}{left}")
        node.drop()
        node.coming.clear()
        self._active.discard(node)
        if self._phase == "receiving":
            self._next()
        else:
            self._go_on()

    def stop(self) -> None:
        """End now, with what has come."""
        if self._phase != "over":
            left = sum(len(node.coming) for node in self._nodes.values())
            self._problems.append(f"stopped; {counted(left, 'file')} missing" if left else "stopped")
            self._end()

    def close(self) -> None:
        """Leave no draft and no mark behind."""
        self._phase = "over"
        for node in self._nodes.values():
            node.drop()
        drafts.remove(self._mark)

    # -- which files ---------------------------------------------------------------------------------

    def _go_on(self) -> None:
        there = [node for node in self._nodes.values() if not node.gone]
        if self._phase == "listing" and all(node.listed for node in there):
            drafts.remove(self._mark)
            self._phase = "comparing"
            self._compare(there)
        if self._phase == "comparing" and not any(node.asked for node in there):
            self._phase = "receiving"
            self._choose(there)

    def _compare(self, nodes: Sequence[_Node]) -> None:
        """Ask for digests where several nodes have a file of one size."""
        owners = Counter((file.path, file.size) for node in nodes for file in node.files)
        for node in nodes:
            for place, file in enumerate(node.files):
                if file.kind == "file" and owners[file.path, file.size] > 1:
                    node.asked.append(place)
            if node.asked:
                node.agent.send(Want(places=tuple(node.asked), digests=True))

    def _choose(self, nodes: Sequence[_Node]) -> None:
        """Decide what each node is to send, and where that goes."""
        found: dict[str, list[tuple[_Node, int, Entry]]] = {}
        sharing = [node for node in nodes if node.shared][:1]
        for node in nodes:
            for place, file in enumerate(node.files):
                wanted = first_match(self._wanted, file.path)
                if node.shared and (node not in sharing or wanted is None or not wanted.folder):
                    self._here += node in sharing
                elif file.kind == "link" and not _stays_inside(file):
                    self._outside.append(f"{shown(file.path)} on {node.agent.name}")
                else:
                    found.setdefault(file.path, []).append((node, place, file))
        for path, owners in found.items():
            contents = {(file.kind, file.size, file.content, file.parts) for _, _, file in owners}
            differ = len(owners) > 1 and (len(contents) > 1 or not owners[0][2].content)
            for node, place, file in owners if differ else owners[:1]:
                self._choose_place(node, place, file, path, differ)
        self._waiting.extend(nodes)
        coming = [(node.agent.name, each.file.size) for node in nodes for each in node.coming]
        size = sum(size for _, size in coming)
        if size > WINDOW:
            names = listed(dict.fromkeys(name for name, _ in coming), 4)
            self._say("info", f"fetching {counted(len(coming), 'file')}, {as_text(size)} from {names}")
        self._next()

    def _choose_place(self, node: _Node, place: int, file: Entry, path: str, differ: bool) -> None:
        """Decide where a file goes, if it has to be sent."""
        wanted = first_match(self._wanted, path)
        assert wanted is not None
        coming = Coming(place, file, wanted.folder or ".", path)
        if differ or coming.here() == "newer":
            coming = coming.replace(path=f"{node.folder}/{path}")
            self._apart.append(coming.target)
        here = coming.here()
        if here == "same":
            self._here += 1
        elif here == "newer":
            self._problems.append(f"{shown(coming.target)}: the file here is newer, and was kept")
        else:
            self._replaced += here == "older"
            node.coming.append(coming)

    # -- contents ------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Let more nodes send; end when all have."""
        while self._phase == "receiving" and self._waiting and len(self._active) < _NODES_AT_ONCE:
            node = self._waiting.popleft()
            if not node.gone:
                self._active.add(node)
                if places := tuple(each.place for each in node.coming if each.file.data):
                    node.agent.send(Want(places=places, digests=False))
                node.steps = self._receive(node)
                self._go_on_with(node)
        if self._phase == "receiving" and not self._active and not self._waiting:
            self._end()

    def _go_on_with(self, node: _Node, skipped: str | None = None) -> None:
        """Write what a node has sent, or go to its next file, as no more comes of this one.

        Args:
            skipped: why that is so.
        """
        assert node.steps is not None
        try:
            if skipped is None:
                next(node.steps)
            else:
                node.steps.throw(_SkippedError(skipped))
        except StopIteration:
            self._active.discard(node)
            if self._is_full:
                self.stop()
            else:
                self._on_done(node.agent.name)

    def _receive(self, node: _Node) -> Generator[float | None, None, None]:
        """Write the files that come of a node. What has no data, such as a link, is complete at once."""
        while node.coming:
            try:
                yield from self._receive_file(node, node.coming[0])
            except _SkippedError:  # of a file that cannot be written either
                pass
            if self._is_full:
                return
            node.coming.popleft()

    def _receive_file(self, node: _Node, coming: Coming) -> Generator[float | None, None, None]:
        left = coming.file.data

        def write(data: memoryview, at: int) -> None:
            nonlocal left
            left -= len(data)
            draft.write(data, at)

        try:
            draft = HomeDraft(coming)
            try:
                if not (yield from node.incoming.data_of(coming.file, write)):
                    raise HomeError("it was changed meanwhile")
                draft.finish(self._umask, self._written)
            finally:
                draft.close()
            self._came.append((node.agent.name, coming))
        except _CANNOT as error:
            why = f"cannot write {coming.target}: {error.strerror}" if isinstance(error, OSError) else str(error)
            self._problems.append(shown(f"{coming.file.path} of {node.agent.name}: {why}"))
            self._is_full = isinstance(error, OSError) and error.errno in _FATAL
            while left and not self._is_full and not isinstance(error, _SkippedError):
                left -= len((yield from node.incoming.take(left)))

    def piece(self, agent: Receiver, piece: Piece) -> None:
        """Write what has come."""
        node = self._nodes[agent]
        if self._phase == "over":
            return
        if node not in self._active:
            raise ProtocolError("it sent contents that were not asked for")
        node.incoming.put(piece.data)
        node.taken += len(piece.data)
        self._go_on_with(node)
        if node in self._active and node.taken >= GRANT:
            agent.send(Taken(size=node.taken))
            node.taken = 0
        self._after(node)

    def skipped(self, agent: Receiver, skipped: Skipped) -> None:
        """Go on with the next file."""
        node = self._nodes[agent]
        if self._phase == "over":
            return
        if node not in self._active:
            raise ProtocolError("it sent contents that were not asked for")
        self._go_on_with(node, skipped.why)
        self._after(node)

    def _after(self, node: _Node) -> None:
        """Go on with the next node if this one has sent all."""
        if node not in self._active:
            if node.incoming:
                raise ProtocolError("it sent contents that were not asked for")
            self._next()

    # -- the end -------------------------------------------------------------------------------------

    def _end(self) -> None:
        self.close()
        here = f"; {counted(self._here, 'file')} here already" if self._here else ""
        names = [agent.name for agent in self._nodes]
        if self._came:
            size = as_text(sum(each.file.size for _, each in self._came))
            from_ = listed((name for name in names if name in {each for each, _ in self._came}), 4)
            older = f"; {self._replaced} replaced older files" if self._replaced else ""
            to = _folders(each for _, each in self._came)
            came = f"fetched {counted(len(self._came), 'file')}, {size} from {from_} to {to}"
            self._say("info", came + older + here)
        elif self._here:
            self._say("info", f"fetched nothing{here}")
        elif not self._problems:
            patterns = listed((f"'{each.pattern}'" for each in self._wanted), 4)
            but = ", except unchanged files that were sent" if self._in_tree else ""
            self._say("warning", f"nothing to fetch: no files match {patterns} on {listed(names, 4)}{but}")
        if self._apart:
            what = "files that differ between nodes, or from a newer file here, have the node's name in their path"
            self._say("warning", f"{what}: {listed(map(shown, self._apart), 2)}")
        if self._outside:
            what = "left on the nodes: links that lead out of the working directory"
            self._say("warning", f"{what}, such as {self._outside[0]}")
        if self._example:
            self._say("warning", f"left on the nodes: FIFOs, sockets or devices, such as {self._example}")
        for problem in self._problems[:_SAID]:
            self._say("error", f"not fetched: {problem}")
        if len(self._problems) > _SAID:
            self._say("error", f"not fetched: {len(self._problems) - _SAID} more")
        self._on_end(f"not all files were fetched: {self._problems[0]}" if self._problems else "")


def _stays_inside(file: Entry) -> bool:
    """Whether a link leads to a place below the folder that the files come from, whatever other links there are."""
    parts = file.content.split("/")
    up = next((place for place, part in enumerate(parts) if part != ".."), len(parts))
    return not os.path.isabs(file.content) and up <= file.path.count("/") and ".." not in parts[up:]


def _folders(coming: Iterable[Coming]) -> str:
    """The folders that hold all of these."""
    found: dict[str, list[str]] = {}
    for each in coming:
        found.setdefault(each.base, []).append(os.path.dirname(each.path) or ".")
    places = (os.path.normpath(os.path.join(base, os.path.commonpath(below))) for base, below in found.items())
    return listed((place if place.startswith(("/", ".")) else f"./{place}" for place in places), 4)
