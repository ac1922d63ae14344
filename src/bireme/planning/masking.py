"""Masks likely secrets in command lines and environments; the only module that decides what is secret.

The name decides, not the value; only a URL shows by itself that it has a password. Hiding too much is a nuisance,
showing too much gives away a password: ``--sort_key`` is hidden, ``--num_keys`` is not.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK = "********"

_SECRET = re.compile(
    r"""
      (?:api|access|secret|private|auth|encryption|signing)[-_.]?(?:key|token)   # anywhere
    | token (?! iz | s(?![a-z]) )                          # not tokenizer, not tokens
    | secret | passw | passphrase | credential | bearer | authorization
    | (?:pass|key) $                                       # at the end: mypass, SSH_KEY, apikey
    | (?<![a-z]) (?:auth|oauth|pw|psw|pwd|pat|jwt|otp|sig|cookie|creds) $  # as a word of its own: --db_pw, --auth
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NO_SECRETS = frozenset({"PWD"})  # the shell's working directory

_OPTION = re.compile(r"--[A-Za-z][\w.-]*(=|$)")
_NAMES_NEXT = frozenset({"-genv", "-env", "--genv", "--env"})  # of mpirun: NAME VALUE
_EXPORTS = ("--export=", "--exports=")
_PLURAL = re.compile(r"(?<!s)s$", re.IGNORECASE)
_PORT = re.compile(r"\d{1,5}[/?#]")
_FIELD = re.compile(r"[\w.-]+$")
_LONGEST_NAME = 100
"""Characters of a field's name that are looked at."""
_LONGEST = 200
_PATH = re.compile(r"[/?#]")


def is_secret(name: str) -> bool:
    """Whether a variable or option of that name is likely to hold a secret."""
    return name not in _NO_SECRETS and _SECRET.search(name.rstrip("0123456789_")) is not None


def shortened(argv: Iterable[str]) -> str:
    """A command line for a message: with likely secrets masked, and at most about 200 characters."""
    import shlex

    text = shlex.join(masked_words(argv))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def masked_words(argv: Iterable[str], *, of_script: bool = True) -> list[str]:
    """A command line with likely secrets masked.

    Args:
        of_script: whether it contains a script's arguments, in which a number after ``-p`` may be a password.
            Elsewhere that is a port, which is shown: ``ssh -p 2222``.
    """
    words: list[str] = []
    hide = several = False  # whether the next word is a secret; whether more may follow
    before = ""
    for word in argv:
        is_port = word.isdecimal() and not of_script
        if hide and not _OPTION.match(word) and not (before == "-p" and is_port):
            words.append(MASK)
            hide = several
        else:
            words.append(_masked_word(word, before))
            hide = _has_secret_value(word, before)
            several = hide and _PLURAL.search(word) is not None
        before = word
    return words


def masked_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with likely secrets masked."""
    return {name: MASK if is_secret(name) else _masked_url(value) for name, value in env.items()}


def _has_secret_value(word: str, before: str) -> bool:
    """Whether the word after this one is a secret."""
    if "=" in word:
        return False
    if word.startswith("-"):
        return word == "-p" or is_secret(word)
    return before in _NAMES_NEXT and is_secret(word)


def _masked_word(word: str, before: str) -> str:
    """Mask the value after ``=`` or ``:`` if its name is that of a secret, and the passwords in URLs."""
    for option in _EXPORTS:  # of Bireme and srun: only names are shown
        if word.startswith(option):
            name, equals, _ = word[len(option) :].partition("=")
            return f"{option}{name}={MASK}" if equals else word
    if before == "--export" and "=" in word:
        return f"{word.partition('=')[0]}={MASK}"
    parts = word.split("=")
    for place, name in enumerate(parts[:-1]):
        if name == "-p" or is_secret(name):
            return "=".join((*parts[: place + 1], MASK))
    return _masked_url(_masked_field(word))


def _masked_field(word: str) -> str:
    """A field of JSON, YAML or a header hidden, and all that follows it: ``{"api_key": …``, ``Authorization: …``."""
    parts = word.split(":")
    for place, before in enumerate(parts[:-1]):
        name = _FIELD.search(before[-_LONGEST_NAME:].rstrip(" \t\"'"))
        if name is not None and is_secret(name[0]) and not parts[place + 1].startswith("//"):
            return ":".join((*parts[: place + 1], f" {MASK}" if parts[place + 1][:1] == " " else MASK))
    return word


def _masked_url(text: str) -> str:
    """Mask ``user:password@`` in URLs, ``token@`` in those of HTTP. A regular expression would take quadratic time."""
    if "://" not in text:
        return text
    shown = []
    for piece in re.split(r"(\s+)", text):
        scheme, *rest = piece.split("://")
        found = [scheme]
        for part in rest:
            found.append(_masked_user(part, is_http=scheme.lower().endswith(("http", "https"))))
            scheme = part
        shown.append("://".join(found))
    return "".join(shown)


def _masked_user(after: str, *, is_http: bool) -> str:
    """Mask the user or password in the part of a URL after ``://``."""
    user, at, host = after.rpartition("@")
    name, colon, password = user.partition(":")
    if not at or _PATH.search(name) or (name and _PORT.match(password)):  # the ``@`` is part of the path
        return after
    if colon:
        return f"{name}:{MASK}@{host}"
    return f"{MASK}@{host}" if is_http else after
