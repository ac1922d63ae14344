"""Tests what every backend promises: command lines that depend only on the plan, and contain no secret."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator

import pytest

from bireme.backends import base, choice
from bireme.backends.base import Backend, HostLaunch, LaunchPlan
from bireme.errors import BadInputError
from bireme.job import LAUNCHERS

AGENT = ("/opt/my env/bin/python", "-m", "bireme.agent", "--dial", "10.0.0.1,127.0.0.1", "40001", "$X; 'y' \"z\"")
HOSTS = ("worker-0", "worker-1.example.org", "10.0.7.3")
ALL_TRAVELS = ("slurm", "mpich", "impi", "mvapich")  # where the engine starts the ranks itself
BY_SHELL = ("ssh", "pdsh")  # a shell over there splits the agent's words
BY_SSH = ("ssh", "pdsh", "openmpi", "mpich", "impi", "mvapich")
COMMAND = ("reach", "{host}", "--")  # what --launcher exec needs
PLAN = LaunchPlan(tuple(map(HostLaunch, HOSTS)), AGENT, "/opt/bin/engine", ("--extra", "two words"))

EVERYWHERE = pytest.mark.parametrize("name", LAUNCHERS)


def backend(name: str) -> Backend:
    return choice.load(name)


def render(name: str, plan: LaunchPlan = PLAN, environ: dict[str, str] | None = None) -> list[tuple[str, ...]]:
    """The command lines; Slurm's inside an allocation, unless ``environ`` says otherwise."""
    if name == "exec":
        plan = plan.replace(extra=(*COMMAND, *plan.extra))
    return list(backend(name).commands(plan, {"SLURM_JOB_ID": "1"} if environ is None else environ))


def words(name: str, plan: LaunchPlan = PLAN, environ: dict[str, str] | None = None) -> list[str]:
    return [word for command in render(name, plan, environ) for word in command]


def agent_of(name: str, command: tuple[str, ...]) -> list[str]:
    """The agent's words, after whatever shell has read them."""
    if name in BY_SHELL:
        exec_, *agent = shlex.split(command[-1])
        assert exec_ == "exec"
        return agent
    return list(command[-len(AGENT) :])


@EVERYWHERE
def test_attributes(name: str) -> None:
    module = backend(name)
    assert name == module.NAME
    assert module.__doc__
    assert bool(module.PROGRAMS) == (name != "exec")
    assert all(type(program) is str and os.sep not in program for program in module.PROGRAMS)
    assert module.CHANNEL in ("stdio", "dial")
    assert all(type(word) is str for word in (*module.CANCEL, *module.rank_variables))
    assert bool(module.TOKEN_VARIABLE) == (module.CHANNEL == "dial")
    if module.TOKEN_VARIABLE:
        assert module.TOKEN_VARIABLE in module.rank_variables, "no rank may see the token"


def test_a_shell_reads_the_words_as_they_were() -> None:
    agent = ("", "a b", "it's", "$X;'\"\\", "a=b", "/x,y:1", "~", "*", "\n", "é")
    assert base.shell_command(agent) == f"exec {shlex.join(agent)}"


def test_unknown() -> None:
    with pytest.raises(BadInputError, match="unknown launcher: 'jsrun'"):
        choice.load("jsrun")


@EVERYWHERE
def test_not_installed(name: str, tmp_path) -> None:
    with pytest.raises(BadInputError, match=r"not found on PATH"):
        backend(name).find_program({"PATH": str(tmp_path)}, COMMAND)


@EVERYWHERE
def test_installed(name: str, tmp_path) -> None:
    for program in backend(name).PROGRAMS or COMMAND[:1]:
        path = tmp_path / program
        path.touch(mode=0o755)
        assert backend(name).find_program({"PATH": f"/nowhere:{tmp_path}"}, COMMAND) == str(path)
        path.unlink()


# -- purity ------------------------------------------------------------------------------------------

_WATCHED: list[str] | None = None


def _watch(event: str, args: object) -> None:
    if _WATCHED is not None and not event.startswith(("object.", "sys._getframe")):
        _WATCHED.append(f"{event} {args}")


@pytest.fixture
def watched() -> Iterator[list[str]]:
    """What the interpreter tells of files, sockets and processes while the test runs."""
    global _WATCHED
    sys.addaudithook(_watch)  # cannot be taken away again
    _WATCHED = []
    yield _WATCHED
    _WATCHED = None


@EVERYWHERE
def test_renders_without_touching_anything(name: str, watched: list[str]) -> None:
    render(name, environ={"PATH": "/bin"})
    del watched[:]
    render(name, environ={"PATH": "/bin"})
    assert watched == []


@EVERYWHERE
def test_same_plan_same_words(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    before = render(name, environ={"PATH": "/bin", "OTHER": "x"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/elsewhere")
    for variable in ("PDSH_SSH_ARGS_APPEND", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "HYDRA_LAUNCHER_EXTRA_ARGS"):
        monkeypatch.setenv(variable, "-v")
    assert render(name, environ={"PATH": "/bin", "OTHER": "x"}) == before


@EVERYWHERE
def test_no_value_of_the_environment_is_in_a_word(name: str) -> None:
    """Arguments can be read by everybody on the machine: neither the token nor anything else may stand there."""
    names = ["PATH", "HOME", "USER", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "WANDB_API_KEY", "PYTHONPATH"]
    names += ["BIREME_TOKEN", "LC_BIREME_TOKEN", backend(name).TOKEN_VARIABLE, "SLURM_JOB_ID", "MV2_X", "I_MPI_X"]
    environ = {variable: f"canary{place}" for place, variable in enumerate(names) if variable}
    assert not [word for word in words(name, environ=environ) if "canary" in word]


@EVERYWHERE
def test_the_token_travels_by_name(name: str) -> None:
    """Its variable is asked for by name, or all variables are sent."""
    module = backend(name)
    if module.CHANNEL == "stdio":
        return
    all_sent = {"--export=ALL", "-export"}
    found = words(name, environ={module.TOKEN_VARIABLE: "canary"})
    assert any(module.TOKEN_VARIABLE in word for word in found) or all_sent & set(found)
    assert "-u" not in found or module.TOKEN_VARIABLE not in found


# -- what is asked for -------------------------------------------------------------------------------


@EVERYWHERE
def test_agent_words(name: str) -> None:
    for command in render(name):
        assert agent_of(name, command) == list(AGENT)


@EVERYWHERE
def test_order_of_hosts(name: str) -> None:
    plan = PLAN.replace(hosts=tuple(map(HostLaunch, reversed(HOSTS))))
    text = " ".join(words(name, plan))
    places = [text.index(host) for host in HOSTS]
    assert places == sorted(places, reverse=True)


@EVERYWHERE
def test_program(name: str) -> None:
    """The executable that was found is the one that runs (ssh is looked up again)."""
    if name != "ssh":
        assert "/opt/bin/engine" in words(name)


@EVERYWHERE
def test_user(name: str) -> None:
    plan = PLAN.replace(hosts=(HostLaunch("worker-0"), HostLaunch("worker-1", "alice")))
    text = by_fair_means(name, plan)
    if name in ("slurm", "kubectl"):
        assert text is None
    else:
        assert text is not None and "@worker-0" not in text
        assert ("--user alice" if name in ("docker", "podman") else "alice@worker-1") in text


def by_fair_means(name: str, plan: LaunchPlan) -> str | None:
    """The command, or nothing where the backend says that it cannot do that."""
    try:
        return " ".join(words(name, plan))
    except BadInputError as error:
        assert error.where == "--launcher" and error.hint
        return None


@pytest.mark.parametrize("name", BY_SSH)
def test_ssh_port(name: str) -> None:
    """Honoured or refused: never overlooked."""
    assert "22022" not in " ".join(words(name))
    text = by_fair_means(name, PLAN.replace(ssh_port=22022))
    if text is not None:
        assert re.search(r"-p '?22022\b", text)
    else:
        assert name == "mvapich"


@pytest.mark.parametrize("name", BY_SSH)
def test_own_port(name: str) -> None:
    """A host's own port in the hostfile: the same."""
    text = by_fair_means(name, PLAN.replace(hosts=(HostLaunch("worker-0"), HostLaunch("worker-1", port=22022))))
    assert text is None if name != "ssh" else "-p 22022" in text


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name not in ("ssh", "exec")])
def test_ipv6(name: str) -> None:
    """Where colons mean something else in a list of hosts."""
    assert by_fair_means(name, PLAN.replace(hosts=(HostLaunch("fd00::7"),))) is None


@pytest.mark.parametrize("name", ["ssh", "pdsh", "openmpi", "mpich", "impi"])
def test_ssh_asks_nothing_and_does_not_wait_for_ever(name: str) -> None:
    text = " ".join(words(name, PLAN.replace(connect_timeout=7)))
    assert "BatchMode=yes" in text
    assert "ConnectTimeout=7" in text


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("pdsh", "PDSH_SSH_ARGS_APPEND"),
        ("mpich", "HYDRA_LAUNCHER_EXTRA_ARGS"),
        ("impi", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
    ],
)
def test_the_users_own_words_for_ssh_stay(name: str, variable: str) -> None:
    (setting,) = [word for word in words(name, environ={variable: "-i key"}) if word.startswith(f"{variable}=")]
    assert setting.startswith(f"{variable}=-i key -")


def test_this_machine_needs_no_ssh() -> None:
    plan = PLAN.replace(hosts=(HostLaunch("worker-0"), HostLaunch("here", local=True)))
    first, second = render("ssh", plan)
    assert first[0] == "ssh"
    assert second == AGENT


def test_slurm_makes_an_allocation_where_there_is_none() -> None:
    (command,) = render("slurm", environ={})
    srun = command.index("/opt/bin/engine")
    assert command[0] == "salloc" and "--exclusive" in command[:srun]
    assert command[command.index("--extra") + 1] == "two words" and command.index("--extra") < srun
    for part in (command[:srun], command[srun:]):
        assert {f"--nodes={len(HOSTS)}", f"--nodelist={','.join(HOSTS)}"} <= set(part)
    assert command[-len(AGENT) :] == AGENT
    assert "salloc" not in render("slurm")[0]


def test_mvapich_sends_nothing_but_what_it_needs_itself() -> None:
    environ = dict.fromkeys(("PATH", "HOME", "LC_ALL", "MV2_DEBUG", "BIREME_TOKEN"), "x")
    withheld = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "WANDB_API_KEY", "RANK"), "x")
    (command,) = render("mvapich", environ={**environ, **withheld})
    assert command[0] == "env"
    unset = command[1 : command.index("/opt/bin/engine")]
    assert unset == ("-u", "CUDA_VISIBLE_DEVICES", "-u", "RANK", "-u", "WANDB_API_KEY")


# -- the engine starts the ranks ---------------------------------------------------------------------

NATIVE = pytest.mark.parametrize("name", [name for name in LAUNCHERS if choice.load(name).starts_ranks])


@NATIVE
def test_native(name: str) -> None:
    """Each node's number of ranks, the names of what travels, the rank's own words."""
    ranks = (2, 2, 2) if name == "slurm" else (2, 3, 1)
    command = backend(name).native(PLAN, ranks, ("PATH", "WANDB_API_KEY"))
    assert command[-len(AGENT) :] == AGENT
    assert "/opt/bin/engine" in command
    assert command.index("--extra") < len(command) - len(AGENT)
    head = " ".join(command[: -len(AGENT)])
    if name == "slurm":
        assert {"--ntasks=6", "--ntasks-per-node=2"} <= set(command)
    elif name in ("impi", "mvapich"):
        named = [part for word in command for part in word.split(",") if part in HOSTS]
        assert named == [*HOSTS[:1] * 2, *HOSTS[1:2] * 3, *HOSTS[2:]]
    else:
        for host, count in zip(HOSTS, ranks, strict=True):
            assert f"{host}:{count}" in head
    assert name in ALL_TRAVELS or "WANDB_API_KEY" in head


@NATIVE
def test_native_port(name: str) -> None:
    if name == "slurm":
        return
    plan = PLAN.replace(ssh_port=22022)
    try:
        command = backend(name).native(plan, (1, 1, 1), ())
    except BadInputError:
        assert name == "mvapich"
    else:
        assert re.search(r"-p '?22022\b", " ".join(command))


def test_native_slurm_refuses_uneven_nodes() -> None:
    with pytest.raises(BadInputError, match="same number of ranks on every node"):
        backend("slurm").native(PLAN, (2, 3, 1), ())
