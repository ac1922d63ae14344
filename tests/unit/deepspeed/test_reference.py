"""What DeepSpeed itself makes of arguments and filters: one test, since the import of DeepSpeed is what it costs."""

from __future__ import annotations

import logging
import random

import pytest

from bireme.deepspeed import runner
from tests.kit import needs
from tests.unit.deepspeed.test_reference_arguments import GIVEN, known


@pytest.mark.slow
def test_as_the_reference_does() -> None:
    reference = needs.module("deepspeed.launcher.runner")
    for line in ("train.py", *GIVEN):
        assert known(runner.parse_args(line.split())) == known(reference.parse_args(line.split())), line
    logging.disable()
    dice = random.Random(20)
    for _ in range(1000):
        pool = {f"w{number}": dice.randint(1, 4) for number in range(dice.randint(1, 3))}
        text = "@".join(node(dice, [*pool] * 3 + ["nobody"]) for _ in range(dice.randint(1, 3)))
        for filters in ((text, ""), ("", text)):
            assert outcome(runner, pool, filters) == outcome(reference, pool, filters), (pool, filters)
    logging.disable(logging.NOTSET)


def node(dice: random.Random, hosts: list[str]) -> str:
    slots = ",".join(str(dice.randint(0, 4)) for _ in range(dice.randint(0, 3)))
    return f"{dice.choice(hosts)}:{slots}" if slots else dice.choice(hosts)


def outcome(module, pool, filters):
    try:
        return [(host, list(slots)) for host, slots in module.parse_inclusion_exclusion(dict(pool), *filters).items()]
    except ValueError:
        return "refused"
