"""One thread, one selector: the event loop of runner and agent.

``asyncio`` costs 80 ms to import and ``selectors`` would add nothing to ``select`` here. Callbacks
run to their end, one after the other; nothing in them may block. Signals arrive as events too: their
handlers do nothing but wake the loop.
"""

from __future__ import annotations

import heapq
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which somebody asks for the end."""
RELAYED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are for the ranks."""

_READ = select.POLLIN | select.POLLHUP | select.POLLERR
_BURST_PAUSE = 0.0005
"""Seconds that a loop under a hail of small writes waits, so that it reads many of them as one.

A rank that prints unbuffered makes two system calls a line: waking up for each would take a whole
core. An event that comes alone is never delayed.
"""


_LONGEST_WAIT = 3600.0
"""Seconds: ``poll`` counts milliseconds in an int, and a grace time may be longer than that."""


class Timer:
    """A call that will be made once; :meth:`cancel` takes it back."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """The call is not made. Harmless when it was made already."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due


class _Epoll:
    """Readiness in the order in which it came: of two agents whose ends are seen at once, which was the first?"""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._masks: dict[int, int] = {}

    def set(self, fd: int, mask: int) -> None:
        """Tell of these events; of none, when the mask is empty."""
        known = self._masks.pop(fd, None)
        if mask:
            self._masks[fd] = mask
            (self._epoll.register if known is None else self._epoll.modify)(fd, mask)
        elif known is not None:
            try:
                self._epoll.unregister(fd)
            except OSError:  # closed already
                pass

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """What is ready, at the latest after so many seconds."""
        return self._epoll.poll(seconds, max(1, len(self._masks)))

    def close(self) -> None:
        """Free the descriptor."""
        self._epoll.close()


class _Poll:
    """The same where there is no ``epoll`` (macOS): in the order of the descriptors."""

    def __init__(self) -> None:
        self._poll = select.poll()

    def set(self, fd: int, mask: int) -> None:
        """As there."""
        if mask:
            self._poll.register(fd, mask)
        else:
            try:
                self._poll.unregister(fd)
            except KeyError:
                pass

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """As there."""
        return self._poll.poll(None if seconds is None else seconds * 1000 + 1)

    def close(self) -> None:
        """There is nothing to free."""


class Loop:
    """Readiness of file descriptors, timers and signals, turned into calls.

    Must live in the main thread (signals do). :meth:`close` gives the signal handlers back.
    """

    def __init__(self) -> None:
        self._poll: _Epoll | _Poll = _Epoll() if hasattr(select, "epoll") else _Poll()
        self._readers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._timers: list[Timer] = []
        self._running = False
        self._handlers: dict[int, Any] = {}
        self._on_signal: Callable[[int], None] = lambda signum: None
        self.late = 0
        """The first signal by which somebody has asked for the end, and of which nobody was told before it came."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._old_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.watch(self._wake_read, self._drain_signals)
        self._arrived = b""
        self._small_reads = False
        self._last_small = 0.0
        _keep_the_heap_steady()

    # -- file descriptors ------------------------------------------------------------------------

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call whenever ``fd`` can be read, or its other end is gone."""
        self._readers[fd] = callback
        self._register(fd)

    def watch_write(self, fd: int, callback: Callable[[], None]) -> None:
        """Call whenever ``fd`` can be written, or its other end is gone."""
        self._writers[fd] = callback
        self._register(fd)

    def unwatch(self, fd: int) -> None:
        """No longer call when ``fd`` can be read."""
        if self._readers.pop(fd, None) is not None:
            self._register(fd)

    def unwatch_write(self, fd: int) -> None:
        """No longer call when ``fd`` can be written."""
        if self._writers.pop(fd, None) is not None:
            self._register(fd)

    def _register(self, fd: int) -> None:
        mask = (_READ if fd in self._readers else 0) | (select.POLLOUT if fd in self._writers else 0)
        self._poll.set(fd, mask)

    # -- time ------------------------------------------------------------------------------------

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call once, ``seconds`` from now."""
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def _run_timers(self) -> float | None:
        """Make the calls that are due; return the seconds until the next one."""
        while self._timers:
            timer = self._timers[0]
            if timer.callback is not None:
                wait = timer.due - time.monotonic()
                if wait > 0:
                    return wait
            heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        return None

    # -- signals ---------------------------------------------------------------------------------

    def on_signals(self, signums: Iterable[int], callback: Callable[[int], None]) -> None:
        """Call with the number of each signal that arrives. A signal ignored at start stays ignored (nohup)."""
        self._on_signal = callback
        for signum in signums:
            old = signal.getsignal(signum)
            if old is not signal.SIG_IGN:
                self._handlers[signum] = old
                signal.signal(signum, _only_wake)

    def _drain_signals(self) -> None:
        self._arrived += self._read_signals()
        while self._arrived:
            signum, self._arrived = self._arrived[0], self._arrived[1:]
            if signum in self._handlers:
                self._on_signal(signum)

    def _read_signals(self) -> bytes:
        try:
            return os.read(self._wake_read, 4096)
        except BlockingIOError:
            return b""

    def halt(self) -> None:
        """On SIGTSTP: stand still until SIGCONT, unless that has come meanwhile: nobody would send it again.

        Between the last look and the halt are microseconds in which one would still be missed.
        """
        self._arrived += self._read_signals()
        if signal.SIGCONT not in self._arrived:
            os.kill(os.getpid(), signal.SIGSTOP)

    # -- running ---------------------------------------------------------------------------------

    def small_read(self) -> None:
        """A reader says that it got only a little: if more comes at once, the loop lets it gather."""
        self._small_reads = True

    def run(self) -> None:
        """Turn events into calls until :meth:`stop`."""
        self._running = True
        while self._running:
            wait = self._run_timers()
            self._let_gather()
            if self._running:
                self._dispatch(wait)

    def _let_gather(self) -> None:
        if self._small_reads:
            self._small_reads = False
            now = time.monotonic()
            if now - self._last_small < _BURST_PAUSE:
                time.sleep(_BURST_PAUSE)
            self._last_small = now

    def _dispatch(self, wait: float | None) -> None:
        for fd, mask in self._poll.wait(None if wait is None else min(wait, _LONGEST_WAIT)):
            if mask & ~select.POLLOUT:
                reader = self._readers.get(fd)
                if reader is not None:
                    reader()
            if mask & ~select.POLLIN:
                writer = self._writers.get(fd)
                if writer is not None:
                    writer()

    def stop(self) -> None:
        """Return from :meth:`run` once the current call is over."""
        self._running = False

    def close(self) -> None:
        """Give the signal handlers back and free the descriptors."""
        for signum, old in self._handlers.items():
            signal.signal(signum, old if old is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_wakeup)
        arrived = (signum for signum in self._arrived + self._read_signals() if signum in self._handlers)
        self.late = next((signum for signum in arrived if signum in STOP_SIGNALS), 0)
        self._readers.clear()  # who lets go of a descriptor after this finds that it is not watched
        self._writers.clear()
        self._poll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def _keep_the_heap_steady() -> None:
    """Keep glibc from giving memory back, and fetching it zeroed again, with every chunk of output.

    Buffers of 64 KiB at the top of the heap pass its trim threshold of 128 KiB each time they are freed, which halves
    the relay's throughput and worse. Freeing one block that was mapped raises the threshold to twice its size; the
    block itself is never touched (``mallopt(3)``, M_MMAP_THRESHOLD).
    """
    bytes(4 << 20)


def _only_wake(signum: int, frame: object) -> None:
    """The wakeup descriptor has carried the number already."""
