"""The scheduler once more, written for clarity and not for speed: it looks at every slot and every task each time."""

from __future__ import annotations

from bireme.tune.execution.slot_scheduler import Task


class Oracle:
    """Decides as a `Scheduler` should; the same may happen to it."""

    def __init__(self, pool, *, order, backfill):
        self.pool, self.order, self.backfill = pool, order, backfill
        self.queue: list[Task] = []
        self.held: dict[str, set] = {}
        self.away: set[str] = set()

    def submit(self, task):
        self.queue.append(task)
        if self.order == "longest":
            self.queue.sort(key=lambda task: -task.shape.size)

    def withdraw(self, key):
        self.queue = [task for task in self.queue if task.key != key]

    def ended(self, key):
        del self.held[key]

    def lost(self, host):
        self.away.add(host)

    def back(self, host):
        self.away.discard(host)

    def everything(self):
        return {(host, slot) for host in self.pool.keys() - self.away for slot in self.pool[host]}

    def free(self):
        return self.everything().difference(*self.held.values())

    def find(self, task, free):
        room = {host: [slot for slot in slots if (host, slot) in free] for host, slots in self.pool.items()}
        hosts = [host for host in self.pool if len(room[host]) >= task.shape.slots and host not in self.avoided(task)]
        if self.order == "longest":
            hosts.sort(key=lambda host: len(room[host]))
        if len(hosts) < task.shape.nodes:
            return None
        chosen = [host for host in self.pool if host in hosts[: task.shape.nodes]]
        return [(host, slot) for host in chosen for slot in room[host][: task.shape.slots]]

    def able(self, shape, avoid):
        hosts = self.pool.keys() - self.away - avoid
        return sum(len(self.pool[host]) >= shape.slots for host in hosts) >= shape.nodes

    def avoided(self, task):
        return task.avoid if self.able(task.shape, task.avoid) else frozenset()

    def decide(self):
        starts, head, kept = {}, None, set()
        for task in list(self.queue):
            if not self.able(task.shape, frozenset()):
                continue
            slots = self.find(task, self.free() - kept)
            if slots is not None:
                starts[task.key] = slots
                self.held[task.key] = set(slots)
                self.withdraw(task.key)
            elif not self.backfill:
                break
            elif head is None:
                head, kept = task, self.needed(task)
        return starts

    def needed(self, head):
        """What the head could need, whichever slots become free next."""
        kept = set()
        for host in self.pool.keys() - self.away - self.avoided(head):
            if len(self.pool[host]) >= head.shape.slots:
                free = [(host, slot) for slot in self.pool[host] if (host, slot) in self.free()]
                kept.update(free[: head.shape.slots])
        return kept
