"""``python -m bireme.agent``: one node of a job with given world info, started by hand."""

from __future__ import annotations

import json
import os
import signal

import pytest

from bireme.planning.world import decode_world_info, encode_world_info
from tests.conftest import PROGRAMS, bireme, clean_environ, read_lines

UNEVEN = {"a": [0], "b": [1, 3], "c": [0]}
LOOK = PROGRAMS / "look.py"


def start(stage, *words, **kwargs):
    return stage.start_argv([*bireme()[:2], "bireme.agent", *map(str, words)], **kwargs)


@pytest.mark.parametrize(
    ("words", "code", "says"), [(["--help"], 0, "usage: python -m bireme.agent"), ([], 2, "bireme: ")]
)
def test_what_is_no_agent_of_a_launcher_is_a_command(stage, words, code, says):
    process = start(stage, *words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code and (out + err).decode().startswith(says), (out, err)


def test_ranks_are_counted_through_uneven_nodes(stage, tmp_path):
    seen = {}
    for node_rank in range(3):
        env = clean_environ(LOOK_DIR=str(tmp_path))
        options = [f"--world_info={encode_world_info(UNEVEN)}", f"--node_rank={node_rank}", "-q"]
        options += ["--master_addr=10.0.0.7", "--master_port=12345"]
        process = start(stage, *options, LOOK, "a b", "--node_rank=9", env=env)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        for path in tmp_path.iterdir():
            seen[int(path.stem)] = json.loads(path.read_text())
            path.unlink()
    place = {rank: (found["environ"]["NODE_RANK"], found["environ"]["LOCAL_RANK"]) for rank, found in seen.items()}
    assert place == {0: ("0", "0"), 1: ("1", "0"), 2: ("1", "1"), 3: ("2", "0")}
    for rank, found in seen.items():
        env = found["environ"]
        assert (env["RANK"], env["WORLD_SIZE"], env["CROSS_SIZE"]) == (str(rank), "4", "3")
        assert env["LOCAL_WORLD_SIZE"] == env["LOCAL_SIZE"] == ("2" if rank in (1, 2) else "1")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.7", "12345")
        assert found["argv"][3:] == ["a b", "--node_rank=9"]


def test_devices_of_the_node_are_those_of_the_world(stage, tmp_path):
    """As under DeepSpeed: the list says which devices, whatever this machine has."""
    env = clean_environ(LOOK_DIR=str(tmp_path))
    options = [f"--world_info={encode_world_info(UNEVEN)}", "--node_rank=1", "-q"]
    start(stage, *options, LOOK, env=env).communicate(timeout=60)
    for rank in (1, 2):
        environ = json.loads((tmp_path / f"{rank}.json").read_text())["environ"]
        assert environ["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_labels_carry_the_rank_of_the_job(stage):
    options = [f"--world_info={encode_world_info(UNEVEN)}", "--node_rank=1", "--no_python"]
    out, _ = start(stage, *options, "echo", "hello").communicate(timeout=60)
    host = os.uname().nodename.partition(".")[0]
    assert sorted(out.decode().splitlines()) == [f"[{host}:1] hello", f"[{host}:2] hello"]


def test_default_rendezvous(stage):
    world = encode_world_info({"a": [0]})
    words = ["-q", "--no_python", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT", "-"]
    out, _ = start(stage, f"--world_info={world}", *words).communicate(timeout=60)
    assert out == b"127.0.0.1 29500\n"


def test_it_supervises_as_the_command_does(stage, script):
    world = encode_world_info({"a": [0, 1]})
    program = script("import os, sys, time\nif os.environ['RANK'] == '1': raise ValueError('boom')\ntime.sleep(1000)\n")
    process = start(stage, f"--world_info={world}", "-q", program)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"rank 1 on " in err and b"failed first" in err and b"ValueError: boom" in err
    assert not stage.left()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_nothing_is_left_after_a_signal(stage, script, signum):
    world = encode_world_info({"a": [0, 1]})
    process = start(
        stage, f"--world_info={world}", "-q", script("print('ready', flush=True)\nimport time\ntime.sleep(1000)")
    )
    read_lines(process, 2, "ready")
    process.send_signal(signum)
    process.communicate(timeout=30)
    assert process.returncode == (-9 if signum == signal.SIGKILL else 128 + signum)
    assert not stage.left(within=30 if signum == signal.SIGKILL else 0)


def test_options_of_the_reference(stage, script, tmp_path):
    world = encode_world_info({"a": [0, 1]})
    options = ["--no_local_rank", "--enable_each_rank_log", tmp_path / "logs", "--bind_cores_to_rank"]
    if len(os.sched_getaffinity(0)) < 2:
        options.pop()
    program = script("takes = '--local_rank'\nimport sys\nprint(sys.argv[1:])\n")
    process = start(stage, f"--world_info={world}", "-q", *options, program, "x")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count(b"['x']") == 2
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_module_and_no_python(stage, tmp_path):
    world = encode_world_info({"a": [0]})
    (tmp_path / "there.py").write_text("print('here')\n")
    for words in (["--module", "there"], ["--no_python", "echo", "here"]):
        process = start(stage, f"--world_info={world}", "-q", *words, cwd=tmp_path)
        assert process.communicate(timeout=60)[0] == b"here\n"


# -- world info ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world", [{"a": [0]}, UNEVEN, {"z": [3, 1], "a": ["GPU-1", "MIG-2/3"]}, {"ü": [0]}, {"fe80::1": [0]}]
)
def test_world_info_and_its_inverse(world):
    text = encode_world_info(world)
    assert text.isascii() and not set(text) & set("+/ \n")
    decoded = decode_world_info(text)
    assert list(decoded) == list(world)
    assert decoded == {host: tuple(map(str, slots)) for host, slots in world.items()}


def test_format_is_the_references():
    assert encode_world_info({"worker-0": [0, 1]}) == "eyJ3b3JrZXItMCI6IFswLCAxXX0="
