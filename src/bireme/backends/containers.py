"""``docker exec``, ``podman exec`` and ``kubectl exec``: one session per container; hosts are their names."""

from __future__ import annotations

import re

from bireme import jsontext
from bireme.backends.base import SessionBackend
from bireme.resources.hostfile import is_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

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


_OF_EXEC = r"-[iqt]*c|--container|--pod-running-timeout"
"""Options of ``kubectl exec`` whose value follows, and which ``kubectl get`` does not have."""
_WHOLE = r"-[iqt]+|-[iqt]*c.+|--(container|pod-running-timeout)=.*|--(stdin|quiet|tty)(=.*)?"
"""Others, with their values."""
_OVER = ("Succeeded", "Failed")


class Kubectl(SessionBackend):
    """kubectl; pods are hosts by their names, or are found by their labels."""

    NAME = "kubectl"
    PROGRAMS = ("kubectl",)
    NO_LABELS = "`kubectl get pods --show-labels` lists them; --launcher_args '-n NAME' names the namespace"

    def command(self, plan: LaunchPlan, host: HostLaunch) -> tuple[str, ...]:
        """A ``kubectl exec`` in the pod. A host with a user, a port or an IPv6 address is refused."""
        self.refuse((host,), users=True)
        return (plan.program or self.NAME, "exec", "-i", *plan.extra, host.name, "--", *plan.agent)

    def query(self, labels: str, extra: tuple[str, ...]) -> tuple[str, ...]:
        """List the pods with these labels, in the cluster and namespace of ``extra``."""
        return ("get", "pods", f"--selector={labels}", "--output=json", *_for_get(extra))

    def found(self, answer: bytes) -> tuple[str, ...]:
        """The pods that have not ended."""
        try:
            return tuple(sorted(_names(jsontext.loads(answer)), key=_in_order))
        except (LookupError, TypeError) as error:
            raise ValueError(repr(error)) from None


BACKENDS = {"docker": Docker(), "podman": Podman(), "kubectl": Kubectl()}


def _for_get(extra: tuple[str, ...]) -> Iterator[str]:
    """The words of ``--launcher_args`` that ``kubectl get`` understands too."""
    words = iter(extra)
    for word in words:
        if re.fullmatch(_OF_EXEC, word):
            next(words, "")
        elif not re.fullmatch(_WHOLE, word):
            yield word


def _names(pods: Any) -> Iterator[str]:
    for pod in pods["items"]:
        name = pod["metadata"]["name"]
        if not isinstance(name, str) or not is_host(name):
            raise ValueError(f"not a name: {name!r}")
        if pod["status"]["phase"] not in _OVER and "deletionTimestamp" not in pod["metadata"]:
            yield name


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sorts pods by the numbers in their names: ``train-10`` comes after ``train-9``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,9})", name)]
