"""The start plan: a pure function from job, pool and facts to ranks, commands and environments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.job import JobSpec, Program
from bireme.planning.environment import JobFacts, NodeFacts
from bireme.planning.start import start_plan

CUDA = JobFacts("job", "cuda", ("CUDA_VISIBLE_DEVICES",), False, "", "10.0.0.1", 29500)
SPEC = JobSpec(Program("train.py", ("--lr", "1")))


def facts(host="a", **more):
    return NodeFacts(**{"hostname": host, "interpreter": "/bin/python", "cores": 16, "temporary": "/e/bireme", **more})


def plan(active, spec=SPEC, job=CUDA, **more):
    return start_plan(spec, active, job, {host: facts(host, **more) for host in active})


pools = st.dictionaries(
    st.text("abcdef", min_size=1), st.integers(1, 9).map(lambda n: tuple(map(str, range(n)))), min_size=1, max_size=6
)


@given(pools)
def test_ranks_count_through_the_nodes_in_order(active):
    found = plan(active)
    workers = [worker for node in found.nodes for worker in node.workers]
    assert [worker.rank for worker in workers] == list(range(found.world_size))
    assert [node.host for node in found.nodes] == list(active)
    for number, (node, slots) in enumerate(zip(found.nodes, active.values(), strict=True)):
        assert node.node_rank == number
        assert [worker.local_rank for worker in node.workers] == list(range(len(slots)))
        assert [worker.slot for worker in node.workers] == list(slots)


@given(pools)
def test_a_node_that_plans_for_itself_plans_the_same(active):
    whole = plan(active)
    for node in whole.nodes:
        alone = start_plan(SPEC, active, CUDA, {node.host: facts(node.host)})
        assert alone.nodes == (node,)
        assert alone.world_size == whole.world_size


def test_environment_of_an_uneven_world():
    found = plan({"a": ("0",), "b": ("1", "3"), "c": ("0",)})
    b = found.nodes[1]
    expected = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "LOCAL_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "OMP_NUM_THREADS": "8",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "BIREME_JOB": "job/1",
    }
    assert dict(b.env) == expected
    assert [dict(worker.env) for worker in b.workers] == [
        {
            "RANK": str(rank),
            "ROLE_RANK": str(rank),
            "LOCAL_RANK": str(rank - 1),
            "TORCHELASTIC_ERROR_FILE": f"/e/bireme-job/rank{rank}.json",
        }
        for rank in (1, 2)
    ]


def test_slots_are_opaque_words():
    (node,) = plan({"a": ("GPU-8932f937", "GPU-17")}).nodes
    assert node.env["CUDA_VISIBLE_DEVICES"] == "GPU-8932f937,GPU-17"


def test_each_slice_of_a_gpu_stands_alone():
    """CUDA shows a process only the first MIG device of its list."""
    (node,) = plan({"a": ("MIG-1", "MIG-2")}).nodes
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in node.workers] == ["MIG-1", "MIG-2"]


def test_commands_of_each_kind():
    for kind, start in (
        ("script", ("/bin/python", "-u", "train.py")),
        ("module", ("/bin/python", "-u", "-m", "train.py")),
        ("exec", ("train.py",)),
    ):
        spec = SPEC.replace(program=Program("train.py", ("--lr", "1"), kind))
        (node,) = plan({"a": ("0",)}, spec).nodes
        assert node.workers[0].argv == (*start, "--lr", "1")


def test_a_script_whose_name_looks_like_an_option():
    (node,) = plan({"a": ("0",)}, SPEC.replace(program=Program("-c.py"))).nodes
    assert node.workers[0].argv == ("/bin/python", "-u", "./-c.py")


def test_local_rank_stands_before_the_scripts_arguments():
    (node,) = plan({"a": ("0", "5")}, job=CUDA.replace(local_rank_flag="--local-rank")).nodes
    assert [worker.argv[2:] for worker in node.workers] == [
        ("train.py", "--local-rank=0", "--lr", "1"),
        ("train.py", "--local-rank=1", "--lr", "1"),
    ]


def test_wrapped_ranks_are_global():
    spec = SPEC.replace(wrap=("w", "{rank}.{local_rank}.{host}.{x}"), wrap_ranks=(2,))
    found = plan({"a": ("0", "1"), "b": ("0",)}, spec)
    assert [worker.argv[0] for node in found.nodes for worker in node.workers] == ["/bin/python", "/bin/python", "w"]
    assert found.nodes[1].workers[0].argv[1] == "2.0.b.{x}"


@pytest.mark.parametrize("rank", [3, -1, 10**9])
def test_a_wrapped_rank_that_there_is_not(rank):
    with pytest.raises(BadInputError, match="--wrap_ranks"):
        plan({"a": ("0", "1"), "b": ("0",)}, SPEC.replace(wrap=("w",), wrap_ranks=(rank,)))


def test_threads():
    (node,) = plan({"a": ("0", "1", "2")}).nodes
    assert node.env["OMP_NUM_THREADS"] == "5"
    (node,) = plan({"a": tuple(map(str, range(32)))}).nodes
    assert node.env["OMP_NUM_THREADS"] == "1"
    (node,) = plan({"a": ("0",)}, omp_threads_set=True).nodes
    assert "OMP_NUM_THREADS" not in node.env
    (node,) = plan({"a": ("0", "1")}, bound=((0, 1, 2), (3, 4, 5)), omp_threads_set=True).nodes
    assert node.env["OMP_NUM_THREADS"] == "3"
    assert [worker.cores for worker in node.workers] == [(0, 1, 2), (3, 4, 5)]


def test_accelerator_that_the_user_named():
    cpu = JobFacts("job", "cpu", (), True, "", "a", 1)
    (node,) = plan({"a": ("0",)}, job=cpu).nodes
    assert (node.env["CUDA_VISIBLE_DEVICES"], node.env["DS_ACCELERATOR"]) == ("", "cpu")
    (node,) = plan({"a": ("0",)}, job=cpu.replace(explicit_accelerator=False)).nodes
    assert not {"CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR"} & set(node.env)


def test_a_plan_is_a_value():
    first, second = plan({"a": ("0", "1")}), plan({"a": ("0", "1")})
    assert first == second
    with pytest.raises(AttributeError):
        first.world_size = 3
    assert first.replace(world_size=3).world_size == 3
    assert first.as_dict()["nodes"][0]["workers"][1]["rank"] == 1
