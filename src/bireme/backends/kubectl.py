"""``kubectl exec``: one session per pod; pods are hosts by their names, or are found by their labels."""

from __future__ import annotations

import re

from bireme import jsontext
from bireme.backends.base import SessionBackend
from bireme.errors import BadInputError, UnfitError
from bireme.resources.hostfile import is_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bireme.backends.base import HostLaunch, LaunchPlan

_WHERE = "--hosts"
_OF_EXEC = ("-c", "--container", "--pod-running-timeout")
"""Options of ``kubectl exec`` with a value that ``kubectl get`` does not have."""
_FLAGS_OF_EXEC = ("-q", "--quiet")
_OVER = ("Succeeded", "Failed")
_WAIT = 30


class Kubectl(SessionBackend):
    """kubectl."""

    NAME = "kubectl"
    PROGRAMS = ("kubectl",)

    def command(self, plan: LaunchPlan, host: HostLaunch) -> tuple[str, ...]:
        """A ``kubectl exec`` in the pod.

        Raises:
            BadInputError: the host has a user or a port, or is an IPv6 address.
        """
        self.refuse((host,), users=True)
        return (plan.program or self.NAME, "exec", "-i", *plan.extra, host.name, "--", *plan.agent)

    def find_hosts(self, labels: str, extra: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
        """Ask the cluster for the pods that have these labels, without those that have ended.

        Raises:
            BadInputError: the selector is malformed, or no pod has these labels.
            UnfitError: the cluster does not answer.
        """
        import subprocess

        if not labels:
            raise BadInputError("no labels", hint="name some, as in --hosts kubectl:app=train", where=_WHERE)
        question = (self.find_program(environ), *query(labels, extra))
        try:
            done = subprocess.run(
                question, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=_WAIT, check=False
            )
        except subprocess.TimeoutExpired:
            raise UnfitError(f"kubectl get pods has not answered within {_WAIT} s", where=_WHERE) from None
        except OSError as error:
            raise UnfitError(f"kubectl cannot be started: {error.strerror}", where=_WHERE) from None
        said = done.stderr.decode(errors="replace").strip().splitlines()
        if done.returncode:
            said = [line for line in said if line.startswith(("error: ", "Error "))] or said
            raise UnfitError(f"kubectl get pods: {said[-1] if said else f'exit code {done.returncode}'}", where=_WHERE)
        names = sorted(_names(done.stdout), key=_in_order)
        if not names:
            hint = "`kubectl get pods --show-labels` lists them; --launcher_args '-n NAME' names the namespace"
            raise BadInputError(f"no pod that has not ended has the labels {labels}", hint=hint, where=_WHERE)
        return tuple(names)


BACKEND = Kubectl()


def query(labels: str, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments that list the pods with these labels, in the cluster and namespace of ``extra``."""
    return ("get", "pods", f"--selector={labels}", "--output=json", *_for_get(extra))


def _for_get(extra: tuple[str, ...]) -> Iterator[str]:
    """The words of ``--launcher_args`` that ``kubectl get`` understands too."""
    words = iter(extra)
    for word in words:
        if word in _OF_EXEC:
            next(words, "")
        elif word not in _FLAGS_OF_EXEC and not re.match(r"-c.|--(container|pod-running-timeout)=", word):
            yield word


def _names(answer: bytes) -> Iterator[str]:
    """The names of the pods in a list that have not ended.

    Raises:
        UnfitError: this is no list of pods.
    """
    try:
        for pod in jsontext.loads(answer)["items"]:
            name = pod["metadata"]["name"]
            if not isinstance(name, str) or not is_host(name):
                raise ValueError(f"not a name: {name!r}")
            if pod["status"]["phase"] not in _OVER and "deletionTimestamp" not in pod["metadata"]:
                yield name
    except (ValueError, LookupError, TypeError) as error:
        raise UnfitError(f"kubectl get pods has not printed a list of pods: {error}", where=_WHERE) from None


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sorts pods by the numbers in their names: ``train-10`` comes after ``train-9``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,9})", name)]
