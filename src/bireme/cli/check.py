"""The command ``bireme check``: runs the preflight on every node, and no job."""

from __future__ import annotations

import os
import sys

from bireme.cli.defaults import in_active_environment
from bireme.cli.job_options import nodes_spec
from bireme.cli.parser import enter, parse
from bireme.cli.run import report
from bireme.errors import OK
from bireme.logs.console import complain, printable, show
from bireme.options.table import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.control.messages import Hello
    from bireme.job import JobSpec
    from bireme.launching.placement import Agents, NativeRanks


def main(argv: list[str]) -> int:
    """Run ``bireme check ARGV``; return 0 if every node is fit, else 1."""
    parsed = parse(select("check"), argv)
    if parsed.options["help"]:
        from bireme.cli.help import help_page

        show(help_page("check"))
        return OK
    spec = nodes_spec(in_active_environment(enter(parsed), os.environ))
    from bireme.launching import placement

    # Where nodes are declared, all of them are asked through agents, also this machine if it is the only one.
    place = placement.resolve(spec.replace(force_multi=True), os.environ)
    if isinstance(place, (placement.Agents, placement.NativeRanks)):
        return _check_nodes(spec, place)
    return _check_here(spec)


def _check_nodes(spec: JobSpec, place: Agents | NativeRanks) -> int:
    """Check nodes through agents; return 0 if all are fit, else 1."""
    from bireme.cluster.preflight import preflight

    found = preflight(spec, os.environ, place.nodes, place.launcher)
    if found.outcome.exit_code != OK:
        report(found.outcome)
        return 1
    show(printable(_inventory({answer.name: answer.facts for answer in found.answers if answer.facts})))
    return OK


def _inventory(facts: Mapping[str, Hello]) -> str:
    """A table of the nodes and their resources, one line for each; ``facts``: by the nodes' names in the pool."""
    rows = []
    for name, hello in facts.items():
        slots = "cpu" if hello.accelerator == "cpu" else f"{hello.accelerator} {','.join(hello.slots)}"
        python = _python(hello.interpreter, hello.python)
        own = f"its own name is {hello.own_name} there" if hello.own_name else ""
        rows.append((name, hello.hostname, slots, f"{hello.cores} cores", *python, own))
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    lines = ("  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _python(path: str, version: str) -> tuple[str, str]:
    """How the ranks' Python is shown: its version if that is known, and its path if it is not the command's own."""
    return f"Python {version}", "" if path == sys.executable else path


def _check_here(spec: JobSpec) -> int:
    """Check this machine, when it is the only node; return 0 if it is fit, else 1."""
    from bireme.errors import BadInputError
    from bireme.one_node.examination import examine, short_hostname
    from bireme.resources.devices import usable_slots

    found = examine(
        spec.on_node(short_hostname()),
        os.environ,
        os.environ,
        lambda devices: usable_slots(devices, num_gpus=spec.num_gpus, filtered=spec.filtered),
    )
    try:
        found.refuse()
    except BadInputError as error:
        complain(str(error))
        return 1
    facts = found.facts
    kind = "cpu" if facts.accelerator == "cpu" else f"{facts.accelerator} {','.join(facts.slots)}"
    words = (os.uname().nodename, kind, f"{facts.cores} cores", *_python(facts.interpreter, facts.python))
    show(f"{'  '.join(words).rstrip()}\n")
    return OK
