"""The hosts that a batch system has allotted to us, from the environment that it gives its jobs.

=====  ============================================================================================
slurm  ``SLURM_JOB_ID`` with ``SLURM_JOB_NODELIST`` (``node[1-3,07],gpu1``). Of a heterogeneous job
       it is the first component.
pbs    ``PBS_NODEFILE``, of PBS and Torque: a line for each process or core that a host is to have.
lsf    ``LSB_JOBID`` with ``LSB_DJOB_HOSTFILE`` (the same kind of file) or, without it,
       ``LSB_MCPU_HOSTS`` (``hostA 4 hostB 4``).
=====  ============================================================================================

**Slots.** What a job of ours wants is devices; what these systems mostly count is cores. And a number of
devices does not say which: on a shared host ours may be 2 and 3, which only the host can tell. So hosts
are asked for their devices (their ``slots`` are ``None``), except where tasks are what counts:

* Slurm's number of GPUs is kept beside the hosts. ``SLURM_GPUS_PER_NODE`` speaks of every host;
  ``SLURM_GPUS_ON_NODE`` and ``SLURM_JOB_GPUS`` speak only of the host on which they are set, so they
  count when it is the only one: after ``--gpus=5`` the hosts differ.
* The number of tasks makes slots where nothing shows a device, neither the scheduler's variables nor
  ``CUDA_VISIBLE_DEVICES`` and its kin, and somebody asked for several on a host. Slurm sets
  ``SLURM_TASKS_PER_NODE`` to the number of cores when nobody asked (``sbatch -N2 --exclusive``), so there
  must be a ``SLURM_NTASKS`` above the number of hosts; and a shell that ``salloc`` opened on the
  login host sees none of the job's devices, so there must be a ``SLURMD_NODENAME``.
  One line for each host in the file of PBS or LSF is what they write when cores, GPUs or whole hosts
  were asked for by other words: it says nothing.

**The launch host of LSF.** Where LSF works with CSM (IBM's machines), a job's script runs on a launch
host, which is listed first, with one slot, and computes nothing. It is left out where it can be told
from a small share of a common host: there is a ``CSM_ALLOCATION_ID``, or its name begins as sites name
such hosts, and every other host has more than one slot. Those then count cores, and are not believed.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.resources import _files
from bireme.resources.devices import ACCELERATORS, visible_variables
from bireme.resources.hostfile import (
    MOST_HOSTS,
    HostEntry,
    is_host,
    numbered_lines,
    quoted,
    read_text,
    split_outside_brackets,
)
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
_MEND = "--hostfile or --hosts name the hosts instead"


class Allocation(Value):
    """What the scheduler gave us.

    Attributes:
        entries: the hosts in the scheduler's order; ``slots`` where tasks (or cores) were counted.
        gpus: how many GPUs each host has for the job; ``None``: not known, or not the same for all.
    """

    scheduler: Scheduler
    entries: tuple[HostEntry, ...]
    gpus: int | None = None


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation in which this process runs; ``None``: there is none.

    Where several schedulers have left their variables (one started through another), the order is
    Slurm, PBS, LSF.

    Raises:
        BadInputError: a variable, or the file that it names, is not what it should be.
    """
    return _slurm(environ) or _pbs(environ) or _lsf(environ)


def _slurm(environ: Mapping[str, str]) -> Allocation | None:
    where = "SLURM_JOB_NODELIST"
    nodes = environ.get(where)
    if not nodes or not environ.get("SLURM_JOB_ID"):
        return None
    names = tuple(dict.fromkeys(_expand(nodes, where)))
    gpus = _gpus(environ, len(names))
    tasks = {} if gpus or _shows_devices(environ) else _tasks(environ, names)
    return Allocation("slurm", tuple(HostEntry(name, slots=tasks.get(name)) for name in names), gpus or None)


def _gpus(environ: Mapping[str, str], hosts: int) -> int:
    """How many GPUs every host has; 0: not known."""
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
    """How many tasks somebody asked for on each host; nothing where nobody did."""
    asked = environ.get("SLURM_NTASKS", "")
    if not environ.get("SLURMD_NODENAME") or not asked or _number(asked, asked, "SLURM_NTASKS") <= len(names):
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
    # Within a step it counts the step's hosts, of which we do not know which they are.
    return dict(zip(names, tasks, strict=True)) if len(tasks) == len(names) and all(tasks) else {}


def _pbs(environ: Mapping[str, str]) -> Allocation | None:
    path = environ.get("PBS_NODEFILE")
    if not path:
        return None
    counts = _counted(path, "PBS_NODEFILE")
    gpus = _files.read(environ.get("PBS_GPUFILE") or os.devnull)  # Torque: a line for each GPU, if there are any
    return _by_counts("pbs", counts, believed=not gpus and not _shows_devices(environ))


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
    return _by_counts("lsf", counts, believed=not launch and not _shows_devices(environ))


def _by_counts(scheduler: Scheduler, counts: Counts, *, believed: bool) -> Allocation:
    believed = believed and any(count > 1 for count, _ in counts.values())
    entries = (HostEntry(name, slots=count if believed else None, line=line) for name, (count, line) in counts.items())
    return Allocation(scheduler, tuple(entries))


def _counted(path: str, variable: str) -> Counts:
    """The hosts of a file that lists one on a line, as often as it has slots."""
    counts: Counts = {}
    for number, line in numbered_lines(read_text(path, variable)):
        name = line.strip()
        if name:
            _check_host(name, variable, f"{path}, line {number}: ")
            count, first = counts.get(name, (0, number))
            counts[name] = count + 1, first
    if not counts:
        raise BadInputError(f"{path} lists no host", hint=_MEND, where=variable)
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
    """Slurm's short form of a list of hosts, written out in its own order.

    NodeSet would sort them; but ``SLURM_TASKS_PER_NODE`` and the numbers of Slurm's tasks go by this order.
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


def _shows_devices(environ: Mapping[str, str]) -> bool:
    """Whether anything in the environment says that the job has devices."""
    lists = {name for kind in ACCELERATORS for name in visible_variables(kind)}.union(_LISTS_OF_DEVICES)
    return any(environ.get(name, "") not in ("", "0") for name in _NUMBERS_OF_DEVICES) or any(
        environ.get(name, "") not in ("", "-1", "NoDevFiles") for name in lists
    )


def _number(digits: str, text: str, where: str) -> int:
    # No count has more digits, and int() raises upon thousands of them.
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise _malformed(text, where)
    return int(digits)


def _check_host(name: str, where: str, place: str = "") -> None:
    if not is_host(name):
        raise BadInputError(f"{place}{quoted(name)} is not a host", hint=_MEND, where=where)


def _malformed(text: str, where: str) -> BadInputError:
    return BadInputError(f"{quoted(text)} is not understood", hint=_MEND, where=where)


def _too_many(where: str) -> BadInputError:
    return BadInputError(f"these are more than {MOST_HOSTS} hosts", hint=_MEND, where=where)
