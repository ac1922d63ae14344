"""The hosts that Slurm, PBS and LSF allocate. The environments of Slurm were recorded from jobs of Slurm 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.resources.allocation import Allocation, find_allocation, slots_by_tasks
from bireme.resources.hostfile import HostEntry


def slurm(nodes: str, **more: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes, **more}


def slots(environ: dict[str, str]) -> dict[str, int | None]:
    allocation = find_allocation(environ)
    assert allocation is not None
    return {entry.name: entry.slots for entry in allocation.entries}


def listed(tmp_path: Path, text: str) -> str:
    path = tmp_path / "nodes"
    path.write_text(text)
    return str(path)


ON_NODE = {"SLURMD_NODENAME": "n1"}
GPUS_HERE = {**ON_NODE, "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_GPUS": "0,1,2,3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
SLURM = {
    "sbatch -N2 --gres=gpu:4": (
        {**GPUS_HERE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"},
        {"n1": None, "n2": None},
    ),
    "sbatch -N2 --gpus=5": (
        {**GPUS_HERE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS": "5", "SLURM_TASKS_PER_NODE": "1(x2)"},
        {"n1": None, "n2": None},
    ),
    "sbatch -N2 --gpus-per-node=2": (
        {**GPUS_HERE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_PER_NODE": "2", "SLURM_GPUS_ON_NODE": "2"},
        {"n1": None, "n2": None},
    ),
    "salloc -N2 --gpus-per-node=a100:2": (
        {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_PER_NODE": "a100:2", "SLURM_TASKS_PER_NODE": "1(x2)"},
        {"n1": None, "n2": None},
    ),
    "sbatch -N1 --gpus-per-node=a100:2,h100:1": (
        {"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_PER_NODE": "a100:2,h100:1"},
        {"n1": None},
    ),
    "sbatch -n1 --gpus=2": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS": "2", "SLURM_GPUS_ON_NODE": "2", "SLURM_NTASKS": "1"},
        {"n1": None},
    ),
    "the same, of a Slurm without SLURM_GPUS_ON_NODE": (
        {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_GPUS": "2,3"},
        {"n1": None},
    ),
    "sbatch -N2 -n8 --gpus-per-task=1": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "8", "SLURM_GPUS_PER_TASK": "1"}
        | {"SLURM_TASKS_PER_NODE": "4(x2)"},
        {"n1": None, "n2": None},
    ),
    "sbatch -N2 --ntasks-per-node=2": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"},
        {"n1": 2, "n2": 2},
    ),
    "sbatch -n5 -N2 --overcommit": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "3,2"},
        {"n1": 3, "n2": 2},
    ),
    "in the list's order": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[2,1],a", "SLURM_NTASKS": "9", "SLURM_TASKS_PER_NODE": "4(x2),1"},
        {"n2": 4, "n1": 4, "a": 1},
    ),
    "sbatch -N2 --ntasks-per-node=1": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"},
        {"n1": None, "n2": None},
    ),
    "sbatch -N2 --exclusive, no GPUs: the tasks are cores": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "64(x2)"},
        {"n1": None, "n2": None},
    ),
    "salloc -N3 -n6: this is the login host, which shows no GPU in any case": (
        {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NTASKS": "6", "SLURM_TASKS_PER_NODE": "2(x3)"},
        {"n1": None, "n2": None, "n3": None},
    ),
    "within a step on fewer hosts": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "4"},
        {"n1": None, "n2": None},
    ),
    "CUDA_VISIBLE_DEVICES where Slurm does not manage GPUs": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
        | {"CUDA_VISIBLE_DEVICES": "0"},
        {"n1": None, "n2": None},
    ),
    "no devices, said aloud": (
        {**ON_NODE, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
        | {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_GPUS_ON_NODE": "0", "ROCR_VISIBLE_DEVICES": ""},
        {"n1": 2, "n2": 2},
    ),
}


def test_tasks_on_the_login_host() -> None:
    """It shows no device in any case: each host has to look, and only one without devices takes the tasks as slots."""
    given = slurm("n[1-3]", SLURM_NTASKS="6", SLURM_TASKS_PER_NODE="2(x3)")
    found = find_allocation(given)
    assert found is not None and {entry.name: entry.tasks for entry in found.entries} == {"n1": 2, "n2": 2, "n3": 2}
    on_node = find_allocation({**given, **ON_NODE})
    assert on_node is not None and [(entry.slots, entry.tasks) for entry in on_node.entries] == [(2, 0)] * 3
    with_gpus = find_allocation({**given, "SLURM_GPUS_PER_NODE": "2"})
    assert with_gpus is not None and not any(entry.tasks for entry in with_gpus.entries)


@pytest.mark.parametrize(
    ("tasks", "accelerator", "environ", "slots"),
    [
        (2, "cpu", {}, ("0", "1")),
        (2, "cpu", ON_NODE, ("0", "1")),
        (0, "cpu", ON_NODE, None),
        (2, "cuda", ON_NODE, ("0", "1")),  # as under sbatch, the job asked for tasks and no GPUs
        (2, "cuda", {**ON_NODE, "CUDA_VISIBLE_DEVICES": "2,3"}, None),
        (2, "cuda", {}, None),  # over ssh, nothing says whether the job has them
    ],
)
def test_slots_by_tasks(tasks: int, accelerator: str, environ: dict[str, str], slots: tuple[str, ...] | None) -> None:
    assert slots_by_tasks(tasks, accelerator, environ) == slots


GPUS = {  # where they are known of every host
    "sbatch -N2 --gpus-per-node=2": 2,
    "salloc -N2 --gpus-per-node=a100:2": 2,
    "sbatch -N1 --gpus-per-node=a100:2,h100:1": 3,
    "sbatch -n1 --gpus=2": 2,
    "the same, of a Slurm without SLURM_GPUS_ON_NODE": 2,
}


@pytest.mark.parametrize("case", SLURM)
def test_slots_and_gpus_of_slurm(case: str) -> None:
    environ, expected = SLURM[case]
    assert slots({"SLURM_JOB_ID": "7", **environ}) == expected
    allocation = find_allocation({"SLURM_JOB_ID": "7", **environ})
    assert allocation is not None
    assert allocation.gpus == GPUS.get(case)


def test_the_whole_value() -> None:
    assert find_allocation(slurm("n[1-2]")) == Allocation("slurm", (HostEntry("n1"), HostEntry("n2")))
    assert find_allocation({}) is None
    assert find_allocation({"SLURM_JOB_ID": "7"}) is None
    assert find_allocation({"SLURM_JOB_NODELIST": "n1"}) is None
    assert find_allocation({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": ""}) is None
    tasks = find_allocation(slurm("n1", SLURMD_NODENAME="n1", SLURM_NTASKS="2", SLURM_TASKS_PER_NODE="2"))
    assert tasks == Allocation("slurm", (HostEntry("n1", slots=2),))
    gpus = find_allocation(slurm("n1", SLURM_GPUS_ON_NODE="2"))
    assert gpus == Allocation("slurm", (HostEntry("n1"),), gpus=2)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-102]", "n098 n099 n100 n101 n102"),
        ("n[9,1-2,05]", "n9 n1 n2 n05"),
        ("z,n[1-2],a-1.b", "z n1 n2 a-1.b"),
        ("r[1-2]n[3-4]-x", "r1n3-x r1n4-x r2n3-x r2n4-x"),
        ("n1,n2,n1", "n1 n2"),
    ],
)
def test_lists_of_slurm(text: str, names: str) -> None:
    assert list(slots(slurm(text))) == names.split()


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n[1",
        "n1]",
        "n[]",
        "n[x]",
        "n[2-1]",
        "n[1-2",
        "(null)",
        "n1,",
        "n[1-9999999]",
        "n[1-9999][1-9999]",
        "-x",
    ],
)
def test_malformed_lists_of_slurm(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        find_allocation(slurm(text))
    assert caught.value.where == "SLURM_JOB_NODELIST"
    assert "--hostfile or --hosts" in caught.value.hint


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLURM_GPUS_PER_NODE", "many"),
        ("SLURM_GPUS_ON_NODE", "0-3"),
        ("SLURM_NTASKS", "x"),
        ("SLURM_TASKS_PER_NODE", "2(x2"),
        ("SLURM_TASKS_PER_NODE", "2(y2)"),
    ],
)
def test_malformed_numbers_of_slurm(variable: str, value: str) -> None:
    environ = slurm("n1", SLURMD_NODENAME="n1", SLURM_NTASKS="4", SLURM_TASKS_PER_NODE="4")
    with pytest.raises(BadInputError) as caught:
        find_allocation({**environ, variable: value})
    assert caught.value.where == variable


# --- PBS and LSF ------------------------------------------------------------------------------


def test_pbs(tmp_path: Path) -> None:
    environ = {"PBS_NODEFILE": listed(tmp_path, "b.x\nb.x\na.x\n\nb.x\n")}
    entries = (HostEntry("b.x", slots=3, line=1), HostEntry("a.x", slots=1, line=3))
    assert find_allocation(environ) == Allocation("pbs", entries)
    assert slots({**environ, "CUDA_VISIBLE_DEVICES": "GPU-1234"}) == {"b.x": None, "a.x": None}
    gpus = tmp_path / "gpus"
    gpus.write_text("")
    assert slots({**environ, "PBS_GPUFILE": str(gpus)}) == {"b.x": 3, "a.x": 1}
    gpus.write_text("b.x-gpu0\nb.x-gpu1\n")
    assert slots({**environ, "PBS_GPUFILE": str(gpus)}) == {"b.x": None, "a.x": None}


def test_one_line_for_each_host_says_nothing(tmp_path: Path) -> None:
    """``select=2:ncpus=64:ngpus=8`` writes one line for each host."""
    assert slots({"PBS_NODEFILE": listed(tmp_path, "b\na\n")}) == {"b": None, "a": None}
    assert slots({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "b 1 a 1"}) == {"b": None, "a": None}


def test_lsf(tmp_path: Path) -> None:
    assert slots({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "hostB 4 hostA 2 hostB 1"}) == {"hostB": 5, "hostA": 2}
    path = listed(tmp_path, "a\na\nb\n")
    environ = {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": path, "LSB_MCPU_HOSTS": "x 4"}
    entries = (HostEntry("a", slots=2, line=1), HostEntry("b", slots=1, line=3))
    assert find_allocation(environ) == Allocation("lsf", entries)
    assert find_allocation({"LSB_DJOB_HOSTFILE": path}) is None


@pytest.mark.parametrize(
    ("hosts", "csm", "expected"),
    [
        ("batch5 1 d09n01 42 d09n02 42", "", {"d09n01": None, "d09n02": None}),
        ("lassen710 1 lassen2 40 lassen3 40", "1234", {"lassen2": None, "lassen3": None}),
        ("a 1 b 2", "", {"a": 1, "b": 2}),
        ("batch5 42 d09n02 42", "1234", {"batch5": 42, "d09n02": 42}),
        ("batch5 1 a 1", "1234", {"batch5": None, "a": None}),
        ("batch5 1", "1234", {"batch5": None}),
    ],
)
def test_the_launch_host_is_left_out(hosts: str, csm: str, expected: dict[str, int | None]) -> None:
    environ = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": hosts, **({"CSM_ALLOCATION_ID": csm} if csm else {})}
    assert slots(environ) == expected


@pytest.mark.parametrize("text", ["a", "a 2 b", "a x", "a 0", "a -1", "2 a", "a:1 2", " "])
def test_malformed_pairs(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        find_allocation({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": text})
    assert caught.value.where == "LSB_MCPU_HOSTS"


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_malformed_files(tmp_path: Path, variable: str) -> None:
    for text, message in (
        ("", "lists no hosts"),
        ("a\na b\n", "line 2: 'a b' is not a host"),
        ("a\0", "not UTF-8 text"),
    ):
        with pytest.raises(BadInputError, match=message) as caught:
            find_allocation({"LSB_JOBID": "7", variable: listed(tmp_path, text)})
        assert caught.value.where == variable
        assert str(tmp_path) in caught.value.what
    with pytest.raises(BadInputError, match="cannot be read") as caught:
        find_allocation({"LSB_JOBID": "7", variable: str(tmp_path / "none")})
    assert caught.value.where == variable


def test_slurm_goes_first(tmp_path: Path) -> None:
    pbs, lsf = {"PBS_NODEFILE": listed(tmp_path, "p")}, {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "l 1"}
    for environ, scheduler in (({**lsf, **pbs, **slurm("s")}, "slurm"), ({**lsf, **pbs}, "pbs"), (lsf, "lsf")):
        allocation = find_allocation(environ)
        assert allocation is not None
        assert allocation.scheduler == scheduler


# --- any input at all -------------------------------------------------------------------------

VALUES = st.one_of(st.text(max_size=20), st.text("an0123456789,[]-()x: \0", max_size=20), st.integers(0, 99).map(str))
VARIABLES = (
    *("SLURM_JOB_NODELIST", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_NTASKS"),
    *("SLURM_TASKS_PER_NODE", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "PBS_NODEFILE", "PBS_GPUFILE"),
    *("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "CSM_ALLOCATION_ID"),
)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(st.sampled_from(VARIABLES), VALUES), st.sampled_from(["", "SLURM_JOB_ID", "LSB_JOBID"]))
def test_every_environment_is_understood_or_refused(environ: dict[str, str], job: str) -> None:
    try:
        allocation = find_allocation({**environ, job: "7"})
    except BadInputError as error:
        assert error.where in VARIABLES
        assert len(str(error).splitlines()) <= 2
    else:
        assert allocation is None or allocation.entries
        for entry in allocation.entries if allocation else ():
            assert entry.slots is None or entry.slots > 0


NUMBERS = st.lists(st.integers(0, 120), min_size=1, max_size=5, unique=True)


@settings(deadline=None)
@given(st.sampled_from(["n", "gpu-a", "r1-"]), NUMBERS, st.integers(1, 4), st.sampled_from(["", "-ib"]))
def test_ranges_are_written_out(prefix: str, numbers: list[int], width: int, suffix: str) -> None:
    words = [f"{number:0{width}d}" for number in numbers]
    assert list(slots(slurm(f"{prefix}[{','.join(words)}]{suffix}"))) == [f"{prefix}{word}{suffix}" for word in words]
