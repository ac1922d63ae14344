"""What newcomers type first: it runs, or one or two lines say what to type instead."""

from __future__ import annotations

import pytest

from bireme.options.table import select
from bireme.resources.misplaced_options import misplaced

SAYS = {
    "--no_python train.py": "train.py is in this folder, but not on PATH\n  leave out --no_python: Python runs it",
    "--no_python tool": "tool is in this folder, but not on PATH\n  make it executable: chmod +x tool; type ./tool",
    "--no_python nosuch": "no such program: nosuch",
    "-H localhost:2 train.py": "-H: no such file: localhost:2\n  to name the nodes themselves: --hosts localhost:2",
    "-H a,b train.py": "--hosts a,b",
    "--log_dir train.py": "no script given\n  --log_dir took it as its value: type --log_dir DIR train.py",
    "--export train.py": "--export took it as its value: type --export WHAT train.py",
    "--heartbeat train.py": "the value is missing: --heartbeat SECONDS train.py",
    "--output train.py": "the value is missing: --output MODE train.py",
    "python -m http.server": "leave out python: type bireme run -m http.server",
    "python -m http.server --bind x": "leave out python: type bireme run -m http.server …;",
    "python3 -c print(1)": "type --no_python python3 -c",
    "python train.py --token x": "leave out python: type bireme run train.py …; --python",
    "torchrun --nproc_per_node 2 train.py": "leave out torchrun: type bireme run --nproc_per_node 2 train.py",
    "deepspeed train.py": "leave out deepspeed: type bireme run train.py",
    "accelerate launch train.py": "leave out accelerate: type bireme run train.py",
    "mpirun -n 2 python train.py": "leave out mpirun: type bireme run -n 2 train.py",
    "srun ./train.py": "leave out srun: type bireme run ./train.py",
    "--env A=1 train.py": "unknown option: --env\n  use --export NAME=VALUE",
    "--accelerator gpu train.py": "leave it out to use the GPUs that there are; cuda means NVIDIA's",
    "--launcher srun train.py": "use --launcher slurm",
    "--rdzv_backend etcd train.py": "leave it out: c10d and static are the only ones",
    "--output out.txt train.py": "use --log_dir DIR for the output of each rank",
    "-wdir . train.py": "use --cwd DIR",
    "--devices 0,1 train.py": "--include localhost:0,1 to choose devices",
    "2 train.py": "to start this many ranks, type --num_gpus 2 train.py",
    "node1:2 train.py": "to name the nodes, type --hosts node1:2 train.py",
    "-- --num_gpus 2 train.py": "leave out --, which ends the options",
    "CUDA_VISIBLE_DEVICES=0 train.py": "put variables first: NAME=VALUE bireme run",
    "help": "type bireme run --help",
    "ds.json": "ds.json is a data file, not a script\n  put the script before it: bireme run train.py … ds.json",
    "c.yaml train.py": "put the script before it: bireme run train.py … c.yaml",
    "d.csv": "d.csv is a data file",
    "notes.txt": "notes.txt is a data file",
    "train.jl": "train.jl is not a Python script: line 1",
    "-t 10 train.py": "for a time limit: --time_limit 10",
    "--watch train.py": "output is shown as it comes; for a study: bireme tune status",
    "--cwd below train.py": "--cwd: train.py is here, not in below\n  type its path from there, or /",
    "--wrap nosuch train.py": "--wrap: no such program: nosuch",
}


@pytest.mark.parametrize("line", SAYS)
def test_what_bireme_run_says(stage, tmp_path, line):
    for name, text in (("train.py", "open('ran', 'w')"), ("tool", ""), ("train.jl", "println(1) end")):
        (tmp_path / name).write_text(text)
    (tmp_path / "below").mkdir()
    for name in ("ds.json", "c.yaml", "d.csv", "notes.txt"):
        (tmp_path / name).write_text("{}")
    done = stage.run("run", *line.split(), cwd=tmp_path)
    assert SAYS[line] in done.stderr
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) <= 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("status", "for running jobs: bireme ps; for a study: bireme tune status DIR"),
        ("jobs", "type bireme ps"),
        ("kill", "bireme stop JOB"),
        ("config", "nothing to set up"),
        ("test", "type bireme check"),
        ("version", "type bireme --version"),
        ("python", "bireme run -m MODULE"),
        ("train", "to run a job: bireme run train.py"),
        ("hello", "to run a job: bireme run hello.py"),
    ],
)
def test_what_bireme_says(stage, tmp_path, word, says):
    for name in ("train.py", "hello.py"):
        (tmp_path / name).write_text("")
    done = stage.run(word, cwd=tmp_path)
    assert says in done.stderr
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 2)


# -- options after the script --------------------------------------------------------------------

NUM_GPUS = ["--num_gpus", "2"]
NAMES_IT_NOT = {
    "no parser": "print(1)",
    "an own parser": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()",
    "known arguments": "import argparse\nargparse.ArgumentParser().parse_known_args()",
    "a comment": "# type --num_gpus 2\n",
    "a docstring": "'''bireme run --num_gpus 2 s.py'''\nimport torch\n",
    "a message": "print('start it by bireme run --num_gpus 2')",
    "libraries": "import deepspeed, torch\nfrom torch import optim\nfrom transformers import AutoModel, AutoConfig",
    "words": "from numpy import argmax, sparse\nlarge = target = margin = 1",
    "its own": "import argparse\nargparse.ArgumentParser().add_argument('--gpus')",
}
MAY_TAKE_IT = {
    "argparse": "p.add_argument('--num_gpus')",
    "argparse with a dash": "p.add_argument('-n', '--num-gpus')",
    "an abbreviation": "p.add_argument('--num_gpus_per_node')",
    "click": "@click.option('--gpu/--no-gpu')\n@click.option('-n,--num-gpus')\ndef f(**_): pass",
    "fire": "import fire\ndef main(num_gpus=1): pass\nfire.Fire(main)",
    "a dataclass": "class Args:\n    num_gpus: int = 1\n",
    "absl": "from absl import app, flags\nflags.DEFINE_integer('num_gpus', 1, '')",
    "docopt": "'''Usage: s.py [--num_gpus=N]'''\nimport docopt\ndocopt.docopt(__doc__)",
    "hydra": "import hydra\n@hydra.main()\ndef main(cfg): pass",
    "arguments elsewhere": "from mylib.training import get_args\nget_args()",
    "a parser elsewhere": "from transformers import HfArgumentParser",
    "an entry point": "from mylib.train import main\nmain()",
    "a module beside it": "import beside",
    "a package beside it": "from package import build",
    "it starts another": "import subprocess, sys\nsubprocess.run(['x', *sys.argv[1:]])",
    "not of this Python": "match = print 1",
    "nothing was read": "",
}


def found(text, words, tmp_path):
    table = {name: option for rows in select("run").values() for option in rows for name in option.names}
    (tmp_path / "beside.py").write_text("parser.add_argument('--num-gpus')")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "options.py").write_text("parser.add_argument('--num_gpus')")
    suspects = {word: table[word.partition("=")[0]] for word in words if word.partition("=")[0] in table}
    return misplaced(words, suspects, text.encode(), [str(tmp_path)])


@pytest.mark.parametrize("case", NAMES_IT_NOT)
def test_a_script_that_does_not_name_an_option(tmp_path, case):
    assert found(NAMES_IT_NOT[case], ["--lr", "1", *NUM_GPUS], tmp_path) == NUM_GPUS


@pytest.mark.parametrize("case", MAY_TAKE_IT)
def test_a_script_that_may_take_an_option(tmp_path, case):
    assert found(MAY_TAKE_IT[case], NUM_GPUS, tmp_path) == []


def test_the_values_of_misplaced_options(tmp_path):
    words = ["--num_gpus=2", "a", "--standalone", "b", "--num_nodes", "2", "--hosts", "--x"]
    assert found("pass", words, tmp_path) == ["--num_gpus=2", "--standalone", "--num_nodes", "2", "--hosts"]


def test_the_note_about_misplaced_options(stage, script, tmp_path):
    path = script("print(1)")
    note = (
        f"bireme: {path} gets --num-gpus 2, which does not occur in its code\n"
        f"  put options of bireme run before the script: --num-gpus 2 {path}\n"
    )
    done = stage.run("run", path, "x", "--num-gpus", "2")
    assert (done.returncode, done.stdout) == (0, "1\n") and done.stderr.startswith(note)
    for words in (
        [path, "--help"],
        ["--", path, "--num_gpus", "2"],
        [path, "--", "--num_gpus", "2"],
        ["--no_python", "echo", "--num_gpus", "2"],
    ):
        assert "does not occur in its code" not in stage.run("run", *words).stderr
    assert stage.run("run", "-q", path, "--num_gpus", "2").stderr == ""


def test_the_note_about_a_module(stage, script, tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    done = stage.run("run", "-m", "train", "--num_gpus", "2", cwd=tmp_path)
    assert "before the script: --num_gpus 2 -m train\n" in done.stderr
