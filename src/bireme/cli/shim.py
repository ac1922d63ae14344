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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK = ".bireme-shim"
"""A file in each folder of these commands: none of them takes one of another folder for the real command."""

# Builtins only: a start of Python costs one more exec and no fork. The PATH without such folders, which ranks get, is
# in $path; a real command that is not a launcher keeps the whole PATH, since it may start one.
_HEAD = """\
#!/bin/sh
# {name}, run by Bireme ({version}).
set -f
IFS=:
path= real=
for each in $PATH; do
    [ ! -e "$each/{mark}" ] || continue
    path=$path:$each
    [ -n "$real" ] || [ ! -f "$each/{name}" ] || [ ! -x "$each/{name}" ] || real=$each/{name}
done
unset IFS
run_real() {{
    [ -n "$real" ] || {{ echo "bireme: {name}: command not found" >&2; exit 127; }}
    exec "$real" "$@"
}}
launch() {{
    [ -x {python} ] || {{ echo "bireme: {name}: there is no {python}: run bireme shim --install again" >&2; exit 127; }}
    PATH=${{path#:}}
    export PATH
    as=$1
    shift
    [ -n "$PYTHON_EXEC" ] || [ -z "$python" ] || [ "$python" = {python} ] || set -- --python "$python" "$@"
    case $as in
        deepspeed) exec {python} -m bireme.deepspeed.runner "$@" ;;
        *) exec {python} -m bireme shim --launch "$as" -- "$@" ;;
    esac
}}
"""
# The Python that the real launcher would start: that of its first line, else the one beside it.
_OWN_PYTHON = """\
python=
if [ -n "$real" ]; then
    IFS= read -r line <"$real" || :
    line=${line#"#!"}
    line=${line%% *}
    case ${line##*/} in
        python*) python=$line ;;
        *) python=${real%/*}/python ;;
    esac
    [ -x "$python" ] || python=
fi
"""
_ACCELERATE = f"""\
[ "$1" = launch ] || run_real "$@"
shift
{_OWN_PYTHON}launch accelerate "$@"
"""
# Of Python's options only -W and -X may be followed by a word of theirs.
_PYTHON = """\
python=$real
words() {
    while [ $# -gt 1 ]; do
        case $1 in
            -m | -[bBdEiIOPqsSuvx]*m) break ;;
            -m* | -[bBdEiIOPqsSuvx]*m*)
                module=${1#-*m}
                shift
                set -- -m "$module" "$@"
                break
                ;;
            -W | -X) shift ;;
            -[bBdEiIOPqsSuvxWX]*) ;;
            *) return ;;
        esac
        shift
    done
    module=$2
    [ $# -lt 2 ] || shift 2
    case $module in
        torch.distributed.run | torch.distributed.launch) launch torchrun "$@" ;;
        accelerate.commands.launch) launch accelerate "$@" ;;
        deepspeed.launcher.runner) launch deepspeed "$@" ;;
    esac
}
words "$@"
run_real "$@"
"""
_SCRIPTS = {
    "torchrun": _OWN_PYTHON + 'launch torchrun "$@"\n',
    "deepspeed": _OWN_PYTHON + 'launch deepspeed "$@"\n',
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
    if parsed.options["launch"]:
        return _launch(parsed.options["launch"], parsed.command, os.environ)
    place = parsed.options["install"]
    if place:
        if parsed.command:
            raise BadInputError("--install only writes the commands", hint="bireme shim --install DIR")
        _write(place, _texts())
        show(f"put it first in PATH: export PATH={shlex.quote(os.path.abspath(place))}:$PATH\n")
        return OK
    if not parsed.command:
        complain("expected a command\n  bireme shim -- llamafactory-cli train …")
        return BAD_INPUT
    return _run(parsed.command)


def _run(command: tuple[str, ...]) -> int:
    """Replace this process by the command, with the folder of our commands first in its PATH."""
    import hashlib

    texts = _texts()
    # A folder for each installation of Bireme: what it has does not change under a running command.
    name = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
    folder = os.path.join(cache_folder(os.environ), f"shim-{name}")
    make_owned(folder, hint="set XDG_CACHE_HOME to a folder of yours")
    _write(folder, texts)
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, {**os.environ, "PATH": path})
    except FileNotFoundError:
        complain(f"no such program: {command[0]}")
        return NOT_FOUND
    except OSError as error:
        raise BadInputError(f"cannot run {command[0]}: {error.strerror}") from None


def _launch(name: str, argv: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Run a command line of torchrun or accelerate with that launcher's own defaults, where ``bireme run`` has others.

    Both start their ranks on this machine alone, unless the line says otherwise; torchrun starts one. accelerate reads
    the file that ``accelerate config`` has saved.
    """
    from bireme.cli.defaults import parse_run
    from bireme.cli.run import carry_out

    words: tuple[str, ...] = ()
    if name == "accelerate":
        words = _saved_config(environ)
    elif not environ.get("PET_NPROC_PER_NODE"):
        words = ("--nproc_per_node=1",)
    parsed = parse_run(select("run"), [*words, *argv], environ)
    options = parsed.options
    if options["num_nodes"] in (None, 1) and not (options["hosts"] or options["hostfile"] or options["no_ssh"]):
        parsed = parsed.replace(options={**options, "standalone": True})
    return carry_out(parsed)


def _saved_config(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The option for the file that ``accelerate config`` has saved, if there is one."""
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.path.expanduser(environ.get("HF_HOME", os.path.join(cache, "huggingface")))
    for name in ("default_config.yaml", "default_config.json"):
        path = os.path.join(home, "accelerate", name)
        if os.path.isfile(path):
            return ("--config_file", path)
    return ()


def _texts() -> dict[str, str]:
    import bireme

    known = {"version": bireme.__version__, "python": shlex.quote(sys.executable), "mark": _MARK}
    return {_MARK: "", **{name: _HEAD.format(name=name, **known) + rest for name, rest in _SCRIPTS.items()}}


def _write(folder: str, texts: Mapping[str, str]) -> None:
    """Write the commands to a folder, those that are not there yet."""
    from bireme import drafts

    try:
        os.makedirs(folder, exist_ok=True)
        for name, text in texts.items():
            path = os.path.join(folder, name)
            if not os.path.isfile(path) or _read(path) != text.encode():
                drafts.write(path, text.encode(), mode=0o755)
    except OSError as error:
        raise BadInputError(f"cannot write to {folder}: {error.strerror}") from None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
