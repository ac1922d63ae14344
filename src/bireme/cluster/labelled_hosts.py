"""Finds the hosts that have some labels, by the launcher's own command (``--hosts kubectl:app=train``)."""

from __future__ import annotations

import os
import subprocess

from bireme.backends import base
from bireme.errors import BadInputError, UnfitError
from bireme.process.kernel import die_with_parent
from bireme.resources.hostfile import HostEntry, and_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec

_WHERE = "--hosts"
_WAIT = 30


def find(spec: JobSpec, environ: Mapping[str, str]) -> tuple[HostEntry, ...]:
    """Find the hosts of ``LAUNCHER:LABELS[:SLOTS]``.

    Args:
        spec: the job, with such a value as its hosts.

    Raises:
        BadInputError: there are no labels, or no host has them; or another launcher was chosen, or it is not installed.
        UnfitError: the question was not answered.
    """
    launcher, _, asked = spec.hosts.partition(":")
    if spec.launcher not in ("auto", launcher):
        hint = f"leave out --launcher {spec.launcher}"
        raise BadInputError(f"{spec.hosts!r} is for --launcher {launcher}", hint=hint, where=_WHERE)
    labels, slots = and_slots(asked, _WHERE)
    if not labels:
        raise BadInputError("no labels", hint=f"name some, as in {_WHERE} {launcher}:app=train", where=_WHERE)
    backend = base.load(launcher)
    question = (backend.find_program(environ), *backend.query(labels, spec.launcher_args))
    try:
        names = backend.found(_answer(question, environ))
    except ValueError as error:
        raise UnfitError(f"{launcher} has not printed a list of hosts: {error}", where=_WHERE) from None
    if not names:
        raise BadInputError(f"nothing that runs has the labels {labels}", hint=backend.NO_LABELS, where=_WHERE)
    return tuple(HostEntry(name=name, slots=slots) for name in names)


def _answer(question: tuple[str, ...], environ: Mapping[str, str]) -> bytes:
    """What the command has printed.

    Raises:
        UnfitError: it failed, or took too long.
    """
    name, this = os.path.basename(question[0]), os.getpid()
    try:
        done = subprocess.run(
            question,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WAIT,
            check=False,
            preexec_fn=lambda: die_with_parent(this),
        )
    except subprocess.TimeoutExpired:
        raise UnfitError(f"{name} has not answered within {_WAIT} s", where=_WHERE) from None
    except OSError as error:
        raise UnfitError(f"{name} cannot be started: {error.strerror}", where=_WHERE) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        said = [line for line in said if line.lower().startswith("error")] or said
        why = said[-1] if said else f"exit code {done.returncode}"
        raise UnfitError(f"{name} does not list the hosts: {why}", where=_WHERE)
    return done.stdout
