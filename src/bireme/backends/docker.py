"""``docker exec`` and ``podman exec``: one session per container; containers are hosts by their names."""

from __future__ import annotations

from bireme.backends.base import SessionBackend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.backends.base import HostLaunch, LaunchPlan


class Docker(SessionBackend):
    """docker."""

    NAME = "docker"
    PROGRAMS: tuple[str, ...] = ("docker",)

    def command(self, plan: LaunchPlan, host: HostLaunch) -> tuple[str, ...]:
        """A ``docker exec`` in the container. A host with a port or an IPv6 address is refused."""
        self.refuse((host,))
        user = ("--user", host.user) if host.user else ()
        return (plan.program or self.NAME, "exec", "-i", *user, *plan.extra, host.name, *plan.agent)


class Podman(Docker):
    """podman, which has docker's command line."""

    NAME = "podman"
    PROGRAMS = ("podman",)


BACKEND, PODMAN = Docker(), Podman()
