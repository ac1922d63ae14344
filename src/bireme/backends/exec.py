"""``exec``: a command of the user's own that runs a program on a host, with its stdin and stdout."""

from __future__ import annotations

import os
import re

from bireme.backends.base import SessionBackend, shell_command
from bireme.errors import BadInputError
from bireme.resources.program import find_executable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import HostLaunch, LaunchPlan

_WHERE = "--launcher_args"
_HINT = "for example: --launcher_args 'docker exec -i {host}'"
_PLACEHOLDERS = ("{host}", "{command}", "{argv}")
_LIKE_ONE = re.compile(r"(?<![${])\{[A-Za-z_]+\}")


class Exec(SessionBackend):
    """exec."""

    NAME = "exec"
    PROGRAMS = ()
    TEMPLATE = True
    ADVICE = (
        (
            r"bireme\.agent --channel.*(no such file|not found|name too long)",
            "no shell reads the command there: write {argv} instead of {command}",
        ),
        (r"syntax ?error", "if a shell reads the command there, write {command} instead of {argv}"),
        (r"^$", "it printed nothing: does it pass on stdin and stdout? (docker exec needs -i)"),
    )

    def command(self, plan: LaunchPlan, host: HostLaunch) -> tuple[str, ...]:
        """The user's command, with the host and the agent in the places of the placeholders."""
        first, *words = template(plan.extra)
        self.refuse((host,), ipv6=False)
        line = [plan.program or first]
        for word in words:
            if word == "{argv}":
                line += plan.agent
            else:
                line.append(word.replace("{host}", host.target).replace("{command}", shell_command(plan.agent)))
        return tuple(line)

    def find_program(self, environ: Mapping[str, str], extra: tuple[str, ...] = ()) -> str:
        """Find the path of the command's executable."""
        program = template(extra)[0]
        path = program if os.sep in program and os.access(program, os.X_OK) else find_executable(program, environ)
        if not path:
            raise BadInputError(f"{program!r} not found{'' if os.sep in program else ' on PATH'}", where=_WHERE)
        return path


BACKENDS = {"exec": Exec()}


def template(extra: tuple[str, ...]) -> tuple[str, ...]:
    """The words of the user's command, which ends with the agent's if it does not say where these go."""
    if not extra:
        raise BadInputError("exec needs a command that reaches a host", hint=_HINT, where="--launcher")
    for word in extra:
        for name in _LIKE_ONE.findall(word):
            if name not in _PLACEHOLDERS:
                hint = "the placeholders are {host}, {command} (one word for a shell) and {argv} (separate words)"
                raise BadInputError(f"unknown placeholder: {name}", hint=hint, where=_WHERE)
            if name == "{argv}" and word != name:
                hint = "write {command}, which is one word for a shell, or {argv} as a word of its own"
                raise BadInputError(f"{{argv}} is several words, and {word!r} is one", hint=hint, where=_WHERE)
    if any(name in extra[0] for name in _PLACEHOLDERS):
        what = f"the first word is the program, so it cannot have placeholders: {extra[0]}"
        hint = f"start it by env: --launcher_args 'env {extra[0]} …'" if extra[0][0] != "{" else _HINT
        raise BadInputError(what, hint=hint, where=_WHERE)
    if not any("{host}" in word for word in extra):
        raise BadInputError("{host} does not occur in the command", hint=_HINT, where=_WHERE)
    given = [name for word in extra for name in ("{command}", "{argv}") if name in word]
    if len(given) > 1:
        raise BadInputError(f"{' and '.join(given)}: the agent is started once", hint="leave one out", where=_WHERE)
    return extra if given else (*extra, "{argv}")
