"""Words that a shell, an option parser or a wrong encoding would change: they are to arrive byte for byte."""

from __future__ import annotations

import os

HARD = (
    *(
        "a b ",
        "  ",
        "",
        "'",
        '"',
        "it's",
        '"quoted"',
        "$HOME ${PATH}",
        "`id` $(id)",
        ";",
        "&",
        "&&",
        "|",
        "*",
        "?",
        "[a]",
    ),
    *("~", "!!", "!x", "#", "\\", "back\\slash\\", "one\ntwo\n", "a\tb\r\x1b[31m", "%d %n %h %u", "ü 漢字 🚣"),
    '{"a": [1, "x y", null], "b": \'c\'}',
    *("-4C", "-", "--", "--num_gpus", "7", "--help", "--local_rank=9", "-i", "--opt=", "=", "a=b=c", "{rank}"),
    *(os.fsdecode(b"\xff\xfe\xc3"), os.fsdecode(bytes(range(1, 256))), "x" * 100_000),
)


def latin(text: str) -> str:
    """As what a rank finds is written: its bytes, in Latin-1."""
    return os.fsencode(text).decode("latin-1")
