"""Agents that wait, with the templates on their nodes, for the next epoch or attempt of their job (``--preload``)."""

from __future__ import annotations

from bireme.control.messages import Release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.cluster.launcher_process import LauncherProcess
    from bireme.control.channel import Channel


class Standby:
    """The agents of one job between two sessions: each has said that nothing of it is left on its node.

    All agents of a session have the same launcher. So they are of use only to a session with no other nodes; where a
    node is new, its ranks have to import their modules anyway, and all others would wait for them.
    """

    def __init__(self) -> None:
        self._launcher: LauncherProcess | None = None
        self._agents: dict[str, tuple[int, Channel]] = {}

    def keep(self, launcher: LauncherProcess, agents: Mapping[str, tuple[int, Channel]]) -> None:
        """Keep agents for the next session.

        Args:
            agents: the index of each one's launcher process, and its channel, by the name of its node.
        """
        self._launcher, self._agents = launcher, dict(agents)

    def take(self, names: Sequence[str]) -> tuple[LauncherProcess, list[tuple[int, Channel]]] | None:
        """Take the agents of these nodes, and release all others; None: these are not all there, and none is now."""
        launcher, agents = self._launcher, self._agents
        found = [agents[name] for name in names if name in agents and _is_free(agents[name][1])]
        if launcher is None or launcher.is_over or len(found) < len(names):
            self.close()
            return None
        self._launcher, self._agents = None, {}
        for index, channel in agents.values():
            if (index, channel) not in found:
                _release(channel)
        return launcher, found

    def close(self) -> None:
        """Release all."""
        for _, channel in self._agents.values():
            _release(channel)
        if self._launcher is not None:
            self._launcher.close(wait=True)
        self._launcher, self._agents = None, {}


def _is_free(channel: Channel) -> bool:
    return not (channel.is_ending or channel.is_feeding)


def _release(channel: Channel) -> None:
    channel.send(Release())
    channel.close()
