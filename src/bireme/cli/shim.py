"""``bireme shim``: runs a command for which ``torchrun``, ``deepspeed`` and ``accelerate launch`` are Bireme."""

from __future__ import annotations

import os
import shlex
import sys

from bireme.cli.parser import parse
from bireme.errors import BAD_INPUT, NOT_FOUND, OK, BadInputError
from bireme.logs.console import complain, show
from bireme.options.table import select
from bireme.resources.ownership import cache_folder, make_owned
from bireme.resources.program import find_executable

# Each stands first in PATH, and takes itself out of it: the ranks have the PATH of the user.
_HEAD = """\
#!/bin/sh
# {name}, run by Bireme ({version}).
own=${{0%/*}} path=
IFS=:
for each in $PATH; do [ "$each" = "$own" ] || path=$path${{path:+:}}$each; done
unset IFS
PATH=$path
export PATH
bireme() {{
    [ -x {python} ] || {{ echo "bireme: {name}: there is no {python}: run bireme shim --install again" >&2; exit 127; }}
    exec {python} -m "$@"
}}
real=$(command -v {name})
"""
_TORCHRUN = """\
[ -z "$real" ] || [ ! -x "${real%/*}/python" ] || PYTHON_EXEC=${PYTHON_EXEC:-${real%/*}/python}
[ -z "$PYTHON_EXEC" ] || export PYTHON_EXEC
bireme bireme run "$@"
"""
_DEEPSPEED = 'bireme bireme.deepspeed.runner "$@"\n'
_REAL = """\
[ -n "$real" ] || { echo "bireme: $(basename "$0"): command not found" >&2; exit 127; }
exec "$real" "$@"
"""
_ACCELERATE = f"""\
if [ "$1" = launch ]; then
    shift
    bireme bireme run "$@"
fi
{_REAL}"""
# Of Python's options only -W and -X are followed by a word of theirs.
_PYTHON = f"""\
launch() {{
    while [ $# -gt 1 ] && [ "$1" != -m ]; do
        case $1 in
            -W | -X) shift ;;
            -[bBdEhiIOPqsSuvx]*) ;;
            *) return ;;
        esac
        shift
    done
    [ "$1" = -m ] || return
    module=$2
    PYTHON_EXEC=${{PYTHON_EXEC:-$real}}
    case $module in
        torch.distributed.run | torch.distributed.launch | accelerate.commands.launch)
            shift 2
            export PYTHON_EXEC
            bireme bireme run "$@"
            ;;
        deepspeed.launcher.runner)
            shift 2
            export PYTHON_EXEC
            bireme bireme.deepspeed.runner "$@"
            ;;
    esac
}}
launch "$@"
{_REAL}"""
_SCRIPTS = {
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "accelerate": _ACCELERATE,
    "python": _PYTHON,
    "python3": _PYTHON,
}


def main(argv: list[str]) -> int:
    """Run ``bireme shim ARGV``: the command takes the place of this process."""
    parsed = parse(select("shim"), argv)
    if parsed.options["help"]:
        from bireme.cli.help import help_page

        show(help_page("shim"))
        return OK
    place = parsed.options["install"]
    if place:
        if parsed.command:
            raise BadInputError("--install writes the commands, and runs none", hint="bireme shim --install DIR")
        _write(place)
        show(f"put it first in PATH: export PATH={shlex.quote(os.path.abspath(place))}:$PATH\n")
        return OK
    if not parsed.command:
        complain("expected a command\n  bireme shim -- llamafactory-cli train …")
        return BAD_INPUT
    folder = os.path.join(cache_folder(os.environ), "shim")
    make_owned(folder, hint="set XDG_CACHE_HOME to a folder of yours")
    _write(folder)
    program = parsed.command[0]
    there = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    path = program if os.sep in program else find_executable(program, there)
    if not path or not os.path.exists(path):
        complain(f"no such program: {program}")
        return NOT_FOUND
    sys.stdout.flush()
    try:
        os.execve(path, parsed.command, there)
    except OSError as error:
        raise BadInputError(f"cannot run {program}: {error.strerror}") from None


def _write(folder: str) -> None:
    """Write the commands to a folder, those that are not there yet."""
    import bireme
    from bireme import drafts

    python = shlex.quote(sys.executable)
    try:
        os.makedirs(folder, exist_ok=True)
        for name, rest in _SCRIPTS.items():
            text = (_HEAD.format(name=name, version=bireme.__version__, python=python) + rest).encode()
            path = os.path.join(folder, name)
            if not os.path.isfile(path) or _read(path) != text:
                drafts.write(path, text, mode=0o755)
    except OSError as error:
        raise BadInputError(f"cannot write to {folder}: {error.strerror}") from None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
