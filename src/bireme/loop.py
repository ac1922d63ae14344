"""The event loop of runner and agent: file descriptors, timers and signals, in one thread.

It takes the place of ``asyncio``, whose import would dominate a launch (``docs/architecture.md`` lists such costs).
Callbacks run one after the other and must not block. Signals are events too: their handlers only wake the loop.
"""

from __future__ import annotations

import heapq
import os
import select
import time

from bireme import signal_numbers as signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask for the end of the job."""
RELAYED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are passed on to the ranks."""

_READ = select.POLLIN | select.POLLHUP | select.POLLERR
_GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
_BURST_PAUSE = 0.0005
"""Seconds that the loop waits during many small writes, so that it reads several at once.

A rank that prints unbuffered makes two system calls per line: waking up for each would take a whole core. A single
event is never delayed.
"""


_LONGEST_WAIT = 3600.0
"""Longest wait of one ``poll``, in seconds: it counts milliseconds in an int, and a timer may be longer than that."""


class Timer:
    """A call that is made once, unless :meth:`cancel` is called before."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not make the call. Does nothing if it was made already."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due


class _Epoll:
    """Reports ready descriptors in the order in which they became ready, to tell which of two agents ended first."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._masks: dict[int, int] = {}

    def set(self, fd: int, mask: int) -> None:
        """Watch a descriptor for these events; stop watching it if the mask is empty."""
        known = self._masks.pop(fd, None)
        if mask:
            self._masks[fd] = mask
            (self._epoll.register if known is None else self._epoll.modify)(fd, mask)
        elif known is not None:
            try:
                self._epoll.unregister(fd)
            except OSError:  # the descriptor was closed already
                pass

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """Wait for at most this many seconds; return the ready descriptors with their events."""
        return self._epoll.poll(seconds, max(1, len(self._masks)))

    def close(self) -> None:
        """Close the descriptor of the epoll itself."""
        self._epoll.close()


class _Poll:
    """Replaces `_Epoll` on systems without epoll (macOS); in the order of the descriptors."""

    def __init__(self) -> None:
        self._poll = select.poll()

    def set(self, fd: int, mask: int) -> None:
        """Watch a descriptor for these events; stop watching it if the mask is empty."""
        if mask:
            self._poll.register(fd, mask)
        else:
            try:
                self._poll.unregister(fd)
            except KeyError:
                pass

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """Wait for at most this many seconds; return the ready descriptors with their events."""
        return self._poll.poll(None if seconds is None else seconds * 1000 + 1)

    def close(self) -> None:
        """Do nothing: poll has no descriptor."""


class Loop:
    """Calls callbacks when file descriptors are ready, timers are due or signals arrive.

    Use it in the main thread, where Python handles signals. :meth:`close` restores the signal handlers.

    Users of a loop also get the time and pipes from it, and read and write through it, so that a simulation
    (``tests/simulation``) can pass a loop with a clock and descriptors of its own.
    """

    serves_others = True
    """Whether processes that are not of the job can reach this one: not in a simulation."""

    now = staticmethod(time.monotonic)
    pipe = staticmethod(os.pipe)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    close_fd = staticmethod(os.close)
    set_blocking = staticmethod(os.set_blocking)

    def __init__(self) -> None:
        self._poll: _Epoll | _Poll = _Epoll() if hasattr(select, "epoll") else _Poll()
        self._readers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._timers: list[Timer] = []
        self._running = False
        self._handlers: dict[int, Any] = {}
        self._on_signal: Callable[[int], None] = lambda signum: None
        self.late = 0
        """The first stop signal that arrived too late to be handled; 0 if there was none."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._old_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.watch(self._wake_read, self._drain_signals)
        self._arrived = b""
        self._small_reads = False
        self._last_small = 0.0
        _keep_the_heap_steady()

    def hung_up(self, fd: int) -> bool:
        """Whether the other end of ``fd`` is gone, even if it has left something to read."""
        poll = select.poll()
        poll.register(fd, _GONE)
        return bool(poll.poll(0))

    # -- file descriptors ------------------------------------------------------------------------

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` whenever ``fd`` can be read, or its other end is gone."""
        self._readers[fd] = callback
        self._register(fd)

    def watch_write(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``fd`` can be written, or its other end is gone."""
        self._writers[fd] = callback
        self._register(fd)

    def unwatch(self, fd: int) -> None:
        """Stop watching ``fd`` for reading."""
        if self._readers.pop(fd, None) is not None:
            self._register(fd)

    def unwatch_write(self, fd: int) -> None:
        """Stop watching ``fd`` for writing."""
        if self._writers.pop(fd, None) is not None:
            self._register(fd)

    def _register(self, fd: int) -> None:
        mask = (_READ if fd in self._readers else 0) | (select.POLLOUT if fd in self._writers else 0)
        self._poll.set(fd, mask)

    # -- time ------------------------------------------------------------------------------------

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` once, ``seconds`` from now."""
        timer = Timer(self.now() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def _run_timers(self) -> float | None:
        """Make the calls that are due; return the seconds until the next one."""
        while self._timers:
            timer = self._timers[0]
            if timer.callback is not None:
                wait = timer.due - self.now()
                if wait > 0:
                    return wait
            heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        return None

    # -- signals ---------------------------------------------------------------------------------

    def on_signals(self, signums: Iterable[int], callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the number of each signal that arrives. An ignored signal stays ignored (nohup)."""
        self._on_signal = callback
        self._read_signals()  # these have had their usual effect
        for signum in signums:
            old = signal.getsignal(signum)
            if old is not signal.SIG_IGN:
                self._handlers[signum] = old
                signal.signal(signum, _only_wake)

    def restore_signals(self) -> None:
        """Restore the handlers from before :meth:`on_signals`; ``late`` names a signal that nobody will handle."""
        for signum, old in self._handlers.items():
            signal.signal(signum, old if old is not None else signal.SIG_DFL)
        arrived = (signum for signum in self._arrived + self._read_signals() if signum in self._handlers)
        self.late = next((signum for signum in arrived if signum in STOP_SIGNALS), 0)
        self._handlers, self._arrived = {}, b""

    def _drain_signals(self) -> None:
        """Report what has arrived, of what came at once SIGINT last: it may be sent after SIGTERM, to kill."""
        self._arrived += self._read_signals()
        self._arrived = bytes(sorted(self._arrived, key=lambda signum: signum == signal.SIGINT))
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
        """Stop this process until SIGCONT, for SIGTSTP; not if SIGCONT has come meanwhile, as it would not come again.

        A SIGCONT in the microseconds between the check and the stop is still missed.
        """
        self._arrived += self._read_signals()
        if signal.SIGCONT not in self._arrived:
            os.kill(os.getpid(), signal.SIGSTOP)

    # -- running ---------------------------------------------------------------------------------

    def small_read(self) -> None:
        """Report a small read: if another follows at once, the loop waits `_BURST_PAUSE` for more data."""
        self._small_reads = True

    def run(self) -> None:
        """Call the callbacks of events until :meth:`stop`."""
        self._running = True
        while self._running:
            wait = self._run_timers()
            self._let_gather()
            if self._running:
                self._dispatch(wait)

    def _let_gather(self) -> None:
        if self._small_reads:
            self._small_reads = False
            now = self.now()
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
        """Restore the signal handlers and close the descriptors."""
        self.restore_signals()
        signal.set_wakeup_fd(self._old_wakeup)
        self._readers.clear()  # so that unwatch() after this does nothing
        self._writers.clear()
        self._poll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def _keep_the_heap_steady() -> None:
    """Keep glibc from returning memory to the kernel, and fetching it again, with every chunk of output.

    Freed buffers of 64 KiB at the top of the heap exceed its trim threshold of 128 KiB, which at least halves the
    throughput of the relay. Freeing one mapped block raises the threshold to twice its size; the block itself is never
    touched (``mallopt(3)``, M_MMAP_THRESHOLD).
    """
    bytes(4 << 20)


def _only_wake(signum: int, frame: object) -> None:
    """Do nothing: the wakeup descriptor already has the number of the signal."""
