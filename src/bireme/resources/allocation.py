"""Finds the hosts that a scheduler (Slurm, PBS, LSF) has allocated, from the environment of its jobs.

=====  ============================================================================================
slurm  ``SLURM_JOB_ID`` with ``SLURM_JOB_NODELIST`` (``node[1-3,07],gpu1``). In a heterogeneous job
       that is the first component.
pbs    ``PBS_NODEFILE``, of PBS and Torque: one line for each process or core on a host.
lsf    ``LSB_JOBID`` with ``LSB_DJOB_HOSTFILE`` (the same kind of file) or, without it,
       ``LSB_MCPU_HOSTS`` (``hostA 4 hostB 4``).
=====  ============================================================================================

**Slots.** Our jobs need devices, but schedulers mostly count cores. A number of devices does not say which ones: on a
shared host they may be 2 and 3, which only the host knows. So the hosts are asked for their devices (``slots`` is
``None``), except where the number of tasks counts:

* Slurm's number of GPUs is stored beside the hosts. ``SLURM_GPUS_PER_NODE`` is valid for every host.
  ``SLURM_GPUS_ON_NODE`` and ``SLURM_JOB_GPUS`` are valid only for the host on which they are set, so they
  are used only if it is the only host: after ``--gpus=5`` the hosts differ.
* The number of tasks becomes the number of slots if no variable names a device, neither the scheduler's nor
  ``CUDA_VISIBLE_DEVICES`` and the like, and the user asked for several tasks per host. Slurm also sets
  ``SLURM_TASKS_PER_NODE``, to the number of cores, when the user did not ask (``sbatch -N2 --exclusive``), so
  ``SLURM_NTASKS`` must be above the number of hosts. A shell that ``salloc`` opened on the login host sees none of
  the job's devices (``SLURMD_NODENAME`` is not set): there each host has to look for them first (``tasks``), so that
  a job has the same ranks under ``sbatch`` and ``salloc``.
  PBS and LSF also write one line per host when the user asked for cores, GPUs or whole hosts in other ways, so one
  line per host gives no number of slots.

**The launch host of LSF.** Where LSF works with CSM (IBM's machines), the job script runs on a launch host. It is
listed first, with one slot, and computes nothing. It is left out if it can be told from a small share of an ordinary
host: ``CSM_ALLOCATION_ID`` is set, or its name begins as such hosts are usually named, and every other host has more
than one slot. The slots of the other hosts then are cores, and are not used.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError, number_in
from bireme.job import ACCELERATORS
from bireme.regular_file import text_of
from bireme.resources.devices import visible_variables
from bireme.resources.hostfile import (
    MOST_HOSTS,
    HostEntry,
    is_host,
    numbered_lines,
    read_text,
    split_outside_brackets,
)
from bireme.resources.pool import quoted
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Literal, TypeAlias

    Scheduler: TypeAlias = Literal["slurm", "pbs", "lsf"]
    Counts: TypeAlias = dict[str, tuple[int, int]]  # host → how often it is listed, and the first line

_NUMBERS_OF_DEVICES = tuple(f"SLURM_GPUS{end}" for end in ("", "_ON_NODE", "_PER_NODE", "_PER_TASK", "_PER_SOCKET"))
_LISTS_OF_DEVICES = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_LAUNCH_HOSTS = ("batch", "launch", "login")
_HINT = "name the hosts with --hostfile or --hosts instead"


class Allocation(Value):
    """The hosts that a scheduler has allocated to this job.

    Attributes:
        entries: the hosts in the scheduler's order, with ``slots`` or ``tasks`` only where the number of tasks counts.
        gpus: the number of GPUs on each host; ``None`` if unknown, or not the same on all.
    """

    scheduler: Scheduler
    entries: tuple[HostEntry, ...]
    gpus: int | None = None


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation in which this process runs, or ``None``.

    If several schedulers have set their variables (one started through another), the order is Slurm, PBS, LSF.
    """
    return _slurm(environ) or _pbs(environ) or _lsf(environ)


def _slurm(environ: Mapping[str, str]) -> Allocation | None:
    where = "SLURM_JOB_NODELIST"
    nodes = environ.get(where)
    if not nodes or not environ.get("SLURM_JOB_ID"):
        return None
    names = tuple(dict.fromkeys(_expand(nodes, where)))
    gpus = _gpus(environ, len(names))
    tasks = {} if gpus or shows_devices(environ) else _tasks(environ, names)
    if environ.get("SLURMD_NODENAME"):
        entries = tuple(HostEntry(name=name, slots=tasks.get(name)) for name in names)
    else:
        entries = tuple(HostEntry(name=name, tasks=tasks.get(name, 0)) for name in names)
    return Allocation("slurm", entries, gpus or None)


def _gpus(environ: Mapping[str, str], hosts: int) -> int:
    """The number of GPUs on every host; 0 if unknown."""
    where = "SLURM_GPUS_PER_NODE"
    total = 0
    for word in environ.get(where, "").split(","):
        number = word.rpartition(":")[2].strip()  # ``2``, ``a100:2`` or ``a100:2,h100:1``
        if word:
            total += _number(number, word, where)
    if total or hosts > 1:
        return total
    here = environ.get("SLURM_GPUS_ON_NODE", "")
    if here:
        return _number(here, here, "SLURM_GPUS_ON_NODE")
    return len([word for word in environ.get("SLURM_JOB_GPUS", "").split(",") if word.strip()])


def _tasks(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, int]:
    """The number of tasks on each host; empty if the user did not ask for tasks."""
    asked = environ.get("SLURM_NTASKS", "")
    if not asked or _number(asked, asked, "SLURM_NTASKS") <= len(names):
        return {}
    where = "SLURM_TASKS_PER_NODE"
    tasks: list[int] = []
    for word in environ.get(where, "0").split(","):
        number, _, times = word.partition("(x")
        if times and not times.endswith(")"):
            raise _malformed(word, where)
        repeated = _number(times[:-1], word, where) if times else 1
        tasks += [_number(number, word, where)] * min(repeated, len(names))
        if len(tasks) > len(names):
            return {}
    # Inside a step the list is for the step's hosts, which we do not know.
    return dict(zip(names, tasks, strict=True)) if len(tasks) == len(names) and all(tasks) else {}


def _pbs(environ: Mapping[str, str]) -> Allocation | None:
    path = environ.get("PBS_NODEFILE")
    if not path:
        return None
    counts = _counted(path, "PBS_NODEFILE")
    gpus = text_of(environ.get("PBS_GPUFILE") or os.devnull)  # Torque: one line per GPU, if any
    return _by_counts("pbs", counts, use_counts=not gpus and not shows_devices(environ))


def _lsf(environ: Mapping[str, str]) -> Allocation | None:
    path, pairs = environ.get("LSB_DJOB_HOSTFILE"), environ.get("LSB_MCPU_HOSTS")
    if not environ.get("LSB_JOBID") or not (path or pairs):
        return None
    counts = _counted(path, "LSB_DJOB_HOSTFILE") if path else _paired(pairs or "", "LSB_MCPU_HOSTS")
    first, *others = counts
    marked = "CSM_ALLOCATION_ID" in environ or first.startswith(_LAUNCH_HOSTS)
    launch = marked and counts[first][0] == 1 and bool(others) and all(counts[name][0] > 1 for name in others)
    if launch:
        del counts[first]
    return _by_counts("lsf", counts, use_counts=not launch and not shows_devices(environ))


def _by_counts(scheduler: Scheduler, counts: Counts, *, use_counts: bool) -> Allocation:
    use_counts = use_counts and any(count > 1 for count, _ in counts.values())
    entries = (
        HostEntry(name=name, slots=count if use_counts else None, line=line) for name, (count, line) in counts.items()
    )
    return Allocation(scheduler, tuple(entries))


def _counted(path: str, variable: str) -> Counts:
    """The hosts of a file that has one line for each slot of a host."""
    counts: Counts = {}
    for number, line in numbered_lines(read_text(path, variable)):
        name = line.strip()
        if name:
            _check_host(name, variable, f"{path}, line {number}: ")
            count, first = counts.get(name, (0, number))
            counts[name] = count + 1, first
    if not counts:
        raise BadInputError(f"{path} lists no hosts", hint=_HINT, where=variable)
    return counts


def _paired(text: str, variable: str) -> Counts:
    """The hosts of ``hostA 4 hostB 4``."""
    words = text.split()
    counts: Counts = {}
    for name, number in zip(words[::2], words[1::2], strict=False):
        _check_host(name, variable)
        counts[name] = counts.get(name, (0, 0))[0] + _number(number, number, variable), 0
    if not counts or len(words) % 2 or not all(count for count, _ in counts.values()):
        raise _malformed(text, variable)
    return counts


def _expand(text: str, where: str) -> Iterator[str]:
    """Expand Slurm's short form of a list of hosts, in its own order.

    NodeSet would sort the hosts, but ``SLURM_TASKS_PER_NODE`` and Slurm's task numbers follow this order.
    """
    left = MOST_HOSTS
    for part in split_outside_brackets(text):
        names = [""]
        rest = part.strip()
        while rest:
            plain, bracket, rest = rest.partition("[")
            ends = [""]
            if bracket:
                inside, bracket, rest = rest.partition("]")
                ends = _written_out(inside, left // len(names), where) if bracket else []
            names = [name + plain + end for name in names for end in ends]
        left -= len(names)
        if left < 0:
            raise _too_many(where)
        if not names:
            raise _malformed(text, where)
        for name in names:
            _check_host(name, where)
            yield name


def _written_out(text: str, most: int, where: str) -> list[str]:
    """``08-10,3`` → ``08``, ``09``, ``10``, ``3``."""
    words: list[str] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first = _number(low, part, where)
        last = _number(high, part, where) if dash else first
        if last - first >= most - len(words):
            raise _too_many(where)
        if last < first:
            raise _malformed(part, where)
        words += (str(number).zfill(len(low)) for number in range(first, last + 1))
    return words


def slots_by_tasks(tasks: int, accelerator: str, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The slots of a node whose number of tasks counts if it shows no devices; ``None``: its devices count.

    Args:
        tasks: the number of tasks; 0: unknown.
        accelerator: the kind of devices that the node has. Outside a step of the scheduler (over ssh), having devices
            is the only sign that the job may use them.
    """
    shown = shows_devices(environ) or (accelerator != "cpu" and "SLURMD_NODENAME" not in environ)
    return None if shown or not tasks else tuple(map(str, range(tasks)))


def shows_devices(environ: Mapping[str, str]) -> bool:
    """Whether a variable in the environment says that the job has devices."""
    lists = {name for kind in ACCELERATORS for name in visible_variables(kind)}.union(_LISTS_OF_DEVICES)
    return any(environ.get(name, "") not in ("", "0") for name in _NUMBERS_OF_DEVICES) or any(
        environ.get(name, "") not in ("", "-1", "NoDevFiles") for name in lists
    )


def _number(digits: str, text: str, where: str) -> int:
    if (number := number_in(digits)) is None:
        raise _malformed(text, where)
    return number


def _check_host(name: str, where: str, place: str = "") -> None:
    if not is_host(name):
        raise BadInputError(f"{place}{quoted(name)} is not a host", hint=_HINT, where=where)


def _malformed(text: str, where: str) -> BadInputError:
    return BadInputError(f"cannot parse {quoted(text)}", hint=_HINT, where=where)


def _too_many(where: str) -> BadInputError:
    return BadInputError(f"more than {MOST_HOSTS} hosts", hint=_HINT, where=where)
