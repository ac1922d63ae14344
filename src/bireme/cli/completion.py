"""``bireme completion SHELL``: prints a script with which bash, zsh or fish completes commands, options and values."""

from __future__ import annotations

from bireme.errors import OK, BadInputError
from bireme.logs.console import show
from bireme.options.table import COMMANDS, SUBCOMMANDS, select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from bireme.options.option import Option

_LINES = {
    "bash": 'eval "$(bireme completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(bireme completion zsh)" in ~/.zshrc, after compinit',
    "fish": "bireme completion fish | source in ~/.config/fish/config.fish",
}


def main(argv: list[str]) -> int:
    """Run ``bireme completion ARGV``."""
    if len(argv) != 1 or argv[0] not in _LINES:
        raise BadInputError("expected the name of a shell", hint="bireme completion bash, zsh or fish")
    show({"bash": _bash, "zsh": _zsh, "fish": _fish}[argv[0]]())
    return OK


def _options(command: str) -> list[Option]:
    return [option for options in select(command).values() for option in options]


def _names(command: str, *, with_value: bool = False) -> str:
    """The names of a command's options, separated by spaces; ``with_value``: only of those that take one."""
    return " ".join(
        name for option in _options(command) for name in option.names if not with_value or option.takes_next
    )


def _second(command: str) -> str:
    """The words that may follow a command, separated by spaces."""
    return " ".join(name.split()[1] for name in SUBCOMMANDS if name.split()[0] == command)


def _choices() -> Iterator[tuple[str, str]]:
    """(pattern of names, values) of each option that has a list of values."""
    for option in _options("run"):
        if option.choices:
            yield "|".join(option.names), " ".join(option.choices)


def _cases(form: str) -> str:
    """A branch of a shell's ``case`` for each list of values."""
    return "\n".join("        " + form.format(names=names, values=values) for names, values in _choices())


def _bash() -> str:
    known = "\n".join(
        f'        {command}) names="{_names(command)}" valued="{_names(command, with_value=True)}" ;;'
        for command in COMMANDS
    )
    own = "\n".join(
        f'        "{name}") COMPREPLY=($(compgen -W "{_names(name)}" -- "$current")); return ;;' for name in SUBCOMMANDS
    )
    return f"""\
# {_LINES["bash"]}
_bireme() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" names= valued= place word
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} help completion --version --help" -- "$current"))
        return
    fi
    if (( COMP_CWORD == 2 )) && [[ ${{COMP_WORDS[1]}} == tune && $current != -* ]]; then
        COMPREPLY=($(compgen -W "{_second("tune")}" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{own}
    esac
    case "${{COMP_WORDS[1]}}" in
{known}
        help) COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --all --man" -- "$current")); return ;;
        completion) COMPREPLY=($(compgen -W "{" ".join(_LINES)}" -- "$current")); return ;;
        *) return ;;
    esac
    for (( place = 2; place < COMP_CWORD; place++ )); do
        word="${{COMP_WORDS[place]//-/_}}"
        word="${{word/#__/--}}" word="${{word/#_/-}}"
        [[ $word == -* ]] || return  # the script: what follows is its own
        [[ " $valued " != *" $word "* ]] || (( ++place ))
    done
    before="${{before/#--/}}"
    (( COMP_CWORD > 2 )) || before=  # the command, which may have the name of an option
    case "--${{before//-/_}}" in
{_cases('{names}) COMPREPLY=($(compgen -W "{values}" -- "$current")); return ;;')}
    esac
    if [[ $current == -* ]]; then
        [[ $current != --*-* ]] || names="$(printf '%s' "$names" | tr _ -)"
        COMPREPLY=($(compgen -W "$names" -- "$current"))
    fi
}}
complete -o default -F _bireme bireme
"""


def _zsh() -> str:
    known = "\n".join(f"        {command}) names=({_names(command)}) ;;" for command in COMMANDS)
    own = "\n".join(f'        "{name}") names=({_names(name)}) ;;' for name in SUBCOMMANDS)
    return f"""\
# {_LINES["zsh"]}
_bireme() {{
    local -a names
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(COMMANDS)} help completion --version --help
        return
    fi
    case $words[2] in
{known}
        help) compadd -- {" ".join(COMMANDS)} --all --man; return ;;
        completion) compadd -- {" ".join(_LINES)}; return ;;
    esac
    [[ $words[2] != tune ]] || (( CURRENT != 3 )) || compadd -- {_second("tune")}
    case "$words[2] $words[3]" in
{own}
    esac
    case $words[CURRENT-1] in
{_cases("{names}) compadd -- {values}; return ;;")}
    esac
    if [[ $PREFIX == -* ]]; then
        [[ $PREFIX != --*-* ]] || names=(${{names//_/-}})
        compadd -- $names
    else
        _files
    fi
}}
compdef _bireme bireme
"""


def _fish() -> str:
    lines = [f"# {_LINES['fish']}"]
    first = "complete -c bireme -n __fish_use_subcommand -f -a"
    lines.append(f"{first} '{' '.join(COMMANDS)} help completion'")
    lines.append(f"complete -c bireme -n '__fish_seen_subcommand_from help' -f -a '{' '.join(COMMANDS)}'")
    lines.append(f"complete -c bireme -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(_LINES)}'")
    seen = "__fish_seen_subcommand_from"
    lines.append(f"complete -c bireme -n '{seen} tune; and not {seen} {_second('tune')}' -a '{_second('tune')}'")
    for command in (*COMMANDS, *SUBCOMMANDS):
        for option in _options(command):
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = "" if not option.takes_next else f" -x -a '{' '.join(option.choices)}'" if option.choices else " -r"
            text = option.help.replace("\\", "\\\\").replace("'", "\\'")
            where = "-n '" + "; and ".join(f"{seen} {word}" for word in command.split()) + "'"
            lines.append(f"complete -c bireme {where} {names}{value} -d '{text}'")
    return "\n".join(lines) + "\n"
