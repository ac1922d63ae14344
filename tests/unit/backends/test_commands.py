"""The exact command lines, as ``ps`` shows them on the machine of the command."""

from __future__ import annotations

import pytest

from bireme.backends import choice
from bireme.backends.base import HostLaunch, LaunchPlan
from bireme.job import LAUNCHERS

HOSTS = (HostLaunch("node1"), HostLaunch("node2", "alice"))
DIAL = "python -m bireme.agent --dial 10.0.0.1,127.0.0.1 40001"
SSH = "-T -x -o BatchMode=yes -o ConnectTimeout=10 -o ClearAllForwardings=yes"

# backend → its commands; words are separated by spaces, ␣ is a space within one
GOLDEN = {
    "ssh": f"""
        ssh {SSH} -p 2222 --extra -- node1 exec␣python␣-m␣bireme.agent␣--channel
        ssh {SSH} -p 2222 --extra -- alice@node2 exec␣python␣-m␣bireme.agent␣--channel
    """,
    "pdsh": f"""
        env PDSH_SSH_ARGS_APPEND={SSH.replace(" ", "␣")}␣-p␣2222␣-o␣SendEnv=LC_BIREME_TOKEN
        pdsh -S -R ssh -f 2 --extra -w node1,alice@node2 exec␣{f"{DIAL} LC_BIREME_TOKEN".replace(" ", "␣")}
    """,
    "openmpi": f"""
        mpirun --allow-run-as-root -n 2 --host node1:1,alice@node2:1 --map-by ppr:1:node --bind-to none
        --mca plm_rsh_args -o␣BatchMode=yes␣-o␣ConnectTimeout=10␣-p␣2222 -x BIREME_TOKEN --wdir / --extra
        {DIAL} BIREME_TOKEN
    """,
    "mpich": f"""
        env HYDRA_LAUNCHER_EXTRA_ARGS=-o␣BatchMode=yes␣-o␣ConnectTimeout=10␣-p␣2222
        mpiexec -launcher ssh -hosts node1,alice@node2 -ppn 1 -bind-to none -wdir / -genvlist BIREME_TOKEN --extra -n 2
        {DIAL} BIREME_TOKEN
    """,
    "impi": f"""
        env I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS=-o␣BatchMode=yes␣-o␣ConnectTimeout=10␣-p␣2222
        I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
        mpiexec.hydra -bootstrap ssh -hosts node1,alice@node2 -ppn 1 -wdir / -genv I_MPI_PIN 0 -genvlist BIREME_TOKEN
        --extra -n 2 {DIAL} BIREME_TOKEN
    """,
    "mvapich": f"""
        env -u CUDA_VISIBLE_DEVICES mpirun_rsh -np 2 -export --extra node1 alice@node2 {DIAL} BIREME_TOKEN
    """,
    "slurm": f"""
        srun --nodes=2 --nodelist=node1,node2 --ntasks=2 --ntasks-per-node=1 --overlap --cpu-bind=none --export=ALL
        --kill-on-bad-exit=0 --wait=0 --input=none --unbuffered --chdir=/ --extra {DIAL} BIREME_TOKEN
    """,
    "exec": """
        reach --extra node1 --command=exec␣python␣-m␣bireme.agent␣--channel
        reach --extra alice@node2 --command=exec␣python␣-m␣bireme.agent␣--channel
    """,
    "kubectl": """
        kubectl exec -i --extra node1 -- python -m bireme.agent --channel
        kubectl exec -i --extra node2 -- python -m bireme.agent --channel
    """,
    "docker": """
        docker exec -i --extra node1 python -m bireme.agent --channel
        docker exec -i --user alice --extra node2 python -m bireme.agent --channel
    """,
    "podman": """
        podman exec -i --extra node1 python -m bireme.agent --channel
        podman exec -i --user alice --extra node2 python -m bireme.agent --channel
    """,
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_commands(name: str) -> None:
    backend = choice.load(name)
    agent = ("python", "-m", "bireme.agent", "--channel")
    if backend.CHANNEL == "dial":
        agent = (*DIAL.split(), backend.TOKEN_VARIABLE)
    port = None if name in ("mvapich", "slurm") else 2222
    hosts = HOSTS if name not in ("slurm", "kubectl") else (HOSTS[0], HostLaunch("node2"))
    extra = ("--extra",) if name != "exec" else ("reach", "--extra", "{host}", "--command={command}")
    plan = LaunchPlan(hosts, agent, extra=extra, ssh_port=port, root=True)
    environ = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"} if name == "mvapich" else {"SLURM_JOB_ID": "1"}
    words = [word for command in backend.commands(plan, environ) for word in command]
    assert words == [word.replace("␣", " ") for word in GOLDEN[name].split()]
