"""Starts a Python on a node in place of a shell there, but none that others may have planted at the path of ours.

A virtual environment below ``/tmp`` may exist here only, and anybody can create its path there. So each part of the
path must belong to root, to the user there, or to an owner of a part here; and only groups may write to it that can
write to a part here. What others share with us on purpose is there as it is here, and passes.
"""

from __future__ import annotations

import os
import stat
import sys

from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import JobSpec

# No quotes but ", and no %, ! or backslash, which launchers and shells replace.
_FIND = 'p=$0;[ -x "$p" ]||p=python3;'
_CHECK = (
    'c(){ set -f;IFS=:;for f in $1;do [ -x "$f" ]&&l="$l:$f";done;[ "$l" ]||return 0;'  # those that exist
    'IFS=/:;q=;set -- ${l#:};for w do shift;[ "$w" ]||q=;q=$q${w:+/$w};set -- "$@" "${q:-/}";done;unset IFS;'  # parts
    'set -- $(ls -ldn "$@" 2>/dev/null);t=$3;'  # the first one is /, whose owner may be "nobody"
    'while [ "$4" ];do case $1 in [dl-][r-][w-]*)'
    'case " <owners> $t " in *" $3 "*);;*)[ "$3" = "${i=$(id -u)}" ]||return 1;;esac;'
    "case $1 in l*);;????????w[x-]*)return <anyone>;;"
    '?????w*)case " <groups> $3 " in *" $4 "*);;*)return 1;;esac;;esac;esac;shift;done;};'
    'c "$1"||{ echo "bireme: others may have planted or can change the Python there: $1" >&2;'
    'echo "  if it is right, name it with --node_python and --python" >&2;exit 69;};unset IFS;set +f;shift;'
)
_EXEC = 'exec "$p" "$@"'
_EXPLICIT = ("--python", "PYTHON_EXEC")


def words(spec: JobSpec, *, short: bool = False) -> tuple[str, ...]:
    """The words that start the Python of a job's agents on a node: the one that it names, ours, or any python3.

    What the user has named runs whoever it belongs to, and so does that of a container.

    Args:
        short: without the check, to be shown.

    Raises:
        BadInputError: the Python is to have another path on each node.
    """
    agent = spec.node_python
    if "{host}" in agent:
        hint = "name a path that is the same on every node, or a name on PATH such as python3.12"
        raise BadInputError("{host} is not replaced in it", hint=hint, where="--node_python")
    implied = [] if agent else [sys.executable]
    if (
        spec.program.kind != "exec"
        and spec.venv_script is None
        and (not spec.python or spec.python_from not in _EXPLICIT)
    ):
        implied.append(spec.python or sys.executable)
    if spec.in_containers or short or not all(map(os.path.isabs, implied)):
        implied = []
    paths = tuple(dict.fromkeys(each for path in implied for each in (path, os.path.realpath(path))))
    if agent and not paths:
        return (agent,)
    check, list_of_paths = (_check(paths), (":".join(paths),)) if paths else ("", ())
    return ("/bin/sh", "-c", f"{'p=$0;' if agent else _FIND}{check}{_EXEC}", agent or sys.executable, *list_of_paths)


def _check(paths: tuple[str, ...]) -> str:
    """The check, with the owners and groups that the parts of these paths have here."""
    owners, groups, anyone = {0}, {0}, 1
    for path in paths:
        while path != "/":
            found, path = os.lstat(path), os.path.dirname(path)
            owners.add(found.st_uid)
            if not stat.S_ISLNK(found.st_mode):
                groups |= {found.st_gid} if found.st_mode & stat.S_IWGRP else set()
                anyone = 0 if found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH else anyone
    check = _CHECK.replace("<anyone>", str(anyone))
    return check.replace("<owners>", _listed(owners)).replace("<groups>", _listed(groups))


def _listed(numbers: set[int]) -> str:
    return " ".join(map(str, sorted(numbers)))
