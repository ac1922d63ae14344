"""Devices, found in file trees created here, and through an NVML library compiled here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bireme
from bireme.errors import BadInputError
from bireme.resources.devices import Devices, discover, slot_aliases, usable_slots, visible_variables
from tests.conftest import clean_environ
from tests.kit import needs

NVML = r"""
/* A stand-in for the driver's library. FAKE_NVML describes the GPUs, one word for each:
   "plain", "old" (knows nothing of MIG), "mig:N" (in MIG mode, with N devices), or "fail". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NO_ROOM = 7, NOT_SUPPORTED = 3, NOT_FOUND = 6, NOT_LOADED = 9 };
struct device { int gpu, part; char kind[16]; };
static struct device gpus[16], parts[16][7];
static int count;

int nvmlInitWithFlags(unsigned flags) {
    const char *text = getenv("FAKE_NVML");
    if (!text || !strcmp(text, "fail")) return NOT_LOADED;
    char copy[256];
    snprintf(copy, sizeof copy, "%s", text);
    count = 0;
    for (char *word = strtok(copy, ","); word; word = strtok(NULL, ",")) {
        gpus[count].gpu = count;
        gpus[count].part = -1;
        snprintf(gpus[count].kind, sizeof gpus[count].kind, "%s", word);
        count++;
    }
    return OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "an error of the fake"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct device **out) { *out = &gpus[i]; return OK; }
int nvmlDeviceGetUUID(struct device *d, char *out, unsigned size) {
    if (d->part < 0) snprintf(out, size, "GPU-%d", d->gpu);
    else snprintf(out, size, "MIG-%d-%d", d->gpu, d->part);
    return OK;
}
int nvmlDeviceGetName(struct device *d, char *out, unsigned size) {
    snprintf(out, size, d->part < 0 ? "Fake H200" : "Fake H200 MIG 1g.18gb");
    return OK;
}
int nvmlDeviceGetMigMode(struct device *d, unsigned *now, unsigned *later) {
    if (!strcmp(d->kind, "old")) return NOT_SUPPORTED;
    *now = *later = !strncmp(d->kind, "mig:", 4);
    return OK;
}
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
static unsigned processes(struct device *d, struct process *out) {
    /* the file FAKE_NVML_USE: a line for each process: its GPU, its pid (0: the driver does not know it), bytes */
    FILE *file = getenv("FAKE_NVML_USE") ? fopen(getenv("FAKE_NVML_USE"), "r") : NULL;
    unsigned n = 0, gpu, pid;
    unsigned long long used;
    while (file && fscanf(file, "%u %u %llu", &gpu, &pid, &used) == 3)
        if ((int)gpu == d->gpu) out[n++] = (struct process){pid, used, -1, -1};
    if (file) fclose(file);
    return n;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(struct device *d, struct memory *out) {
    /* 80 GiB, an old one 16; a MIG device 10 */
    out->total = (d->part >= 0 ? 10ull : !strcmp(d->kind, "old") ? 16ull : 80ull) << 30;
    out->free = out->total; out->used = 0;
    struct process found[16];
    unsigned n = processes(d, found);
    while (n--) out->used += found[n].used;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *n, struct process *out) {
    struct process found[16];
    unsigned room = *n, known = 0, all = processes(d, found);
    for (unsigned i = 0; i < all; i++)
        if (found[i].pid && ++known <= room) out[known - 1] = found[i];
    *n = known;
    return known > room ? NO_ROOM : OK;
}
struct shares { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct device *d, struct shares *out) {
    if (!strcmp(d->kind, "old")) return NOT_SUPPORTED;
    out->gpu = 97 - d->gpu; out->memory = 5;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(struct device *d, unsigned *n) { *n = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned i, struct device **out) {
    /* every second place is left empty, as after some devices were taken away again */
    if (i % 2 || (int)(i / 2) >= atoi(d->kind + 4)) return NOT_FOUND;
    parts[d->gpu][i] = (struct device){d->gpu, i, ""};
    *out = &parts[d->gpu][i];
    return OK;
}
"""


def make(root: Path, *paths: str) -> str:
    """A file tree with these files; a path that ends with ``/`` is a directory."""
    for path in paths:
        place = root / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.touch()
    return str(root)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


# --- NVIDIA -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = needs.program("cc", "gcc", "clang")
    needs.module("pynvml")
    home = tmp_path_factory.mktemp("nvml")
    (home / "nvml.c").write_text(NVML)
    command = [compiler, "-shared", "-fPIC", "-o", str(home / "libnvidia-ml.so.1"), str(home / "nvml.c")]
    subprocess.run(command, check=True)
    return home


@pytest.mark.parametrize(
    ("gpus", "ids", "gib"),
    [
        ("plain,plain", "0,1", 80),
        ("plain,old", "0,1", 16),
        ("plain,old", "0", 80),
        ("plain,old", "GPU-1", 16),
        ("plain,mig:2", "GPU-0,MIG-1-0", 10),
        ("old,plain", "GPU", None),
        ("old,plain", "GPU-", 16),  # names may be shortened
        ("plain,mig:2", "1", 10),
        ("plain,plain", "0,7", None),
        ("plain,plain", "0,GPU-7", None),
        ("plain", "", None),
        ("", "0", None),
        ("fail", "0", None),
    ],
)
def test_the_smallest_of_some_devices_tells_how_much_memory_there_is(
    nvml: Path, gpus: str, ids: str, gib: int | None
) -> None:
    script = f"from bireme.resources.nvidia import smallest_memory; print(smallest_memory({ids.split(',')}))"
    home = os.path.dirname(os.path.dirname(os.path.abspath(bireme.__file__)))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(nvml), "FAKE_NVML": gpus, "PYTHONPATH": home}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(None if gib is None else gib << 30)


def test_what_ranks_use_of_their_gpus(nvml: Path, tmp_path: Path) -> None:
    """Rank 2 has one that says little, rank 3 one that the driver does not know; it does not matter who uses memory."""
    (uses := tmp_path / "uses").write_text("0 4711 1024\n0 4712 1024\n2 0 7\n")
    script = (
        "from bireme.one_node.use_meter import UseMeter\n"
        "found = UseMeter({}, {0: '0', 1: 'GPU-1', 2: '2', 3: '9'}).measure(dict.fromkeys(range(4), 1))\n"
        "print(found.gpu, found.gpu_memory)"
    )
    environment = clean_environ(LD_LIBRARY_PATH=str(nvml), FAKE_NVML="plain,plain,old", FAKE_NVML_USE=str(uses))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(0.97, 0.96, -1.0, -1.0) (2048, 0, 7, -1)"


def with_nvml(nvml: Path, gpus: str, root: str, accelerator: str = "auto", **environ: str) -> Devices:
    """What ``discover`` finds in a process that loads the stand-in."""
    script = """
import os, sys
from bireme.errors import BadInputError
from bireme.resources.devices import discover
try:
    print(repr(discover(sys.argv[1], eval(sys.argv[3]), sys.argv[2])))
except BadInputError as error:
    print(repr(str(error)))
"""
    home = os.path.dirname(os.path.dirname(os.path.abspath(bireme.__file__)))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(nvml), "FAKE_NVML": gpus, "PYTHONPATH": home}
    command = [sys.executable, "-c", script, accelerator, root, repr(environ)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return eval(done.stdout, {"Devices": Devices})  # type: ignore[no-any-return]


def test_nvml_tells_the_gpus(nvml: Path, tmp_path: Path) -> None:
    root = make(tmp_path, "dev/nvidiactl", "dev/nvidia0", "dev/nvidia1", "dev/nvidia-uvm")
    found = with_nvml(nvml, "plain,old", root)
    assert found == Devices("cuda", ("0", "1"), None, ("Fake H200", "Fake H200"), ("GPU-0", "GPU-1"))
    assert slot_aliases(found) == {"GPU-0": "0", "GPU-1": "1"}


@pytest.mark.parametrize("hint", ["dev/nvidia0", "dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/gpus/0000:01:00.0/"])
def test_any_trace_of_the_driver_makes_us_ask(nvml: Path, tmp_path: Path, hint: str) -> None:
    assert with_nvml(nvml, "plain", make(tmp_path, hint)).ids == ("0",)


def test_without_a_trace_nobody_is_asked(nvml: Path, tmp_path: Path) -> None:
    found = with_nvml(nvml, "plain", make(tmp_path, "dev/nvidia-caps/", "dev/nvidia-uvm"))
    assert (found.accelerator, found.reason) == ("cpu", "no accelerator found")


def test_nvml_is_believed_when_it_knows_of_no_gpu(nvml: Path, tmp_path: Path) -> None:
    assert with_nvml(nvml, "", make(tmp_path, "dev/nvidia0")).accelerator == "cpu"


SMI = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)
  MIG 3g.20gb     Device  0: (UUID: MIG-bb)
  MIG 1g.5gb      Device  1: (UUID: MIG-cc)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-dd)
"""


@pytest.mark.parametrize(
    ("lines", "ids"), [(SMI, ("MIG-bb", "MIG-cc", "GPU-dd")), (SMI.splitlines()[3].replace("1:", "0:"), ("0",))]
)
def test_nvidia_smi_is_asked_without_pynvml(tmp_path: Path, lines: str, ids: tuple[str, ...]) -> None:
    """As in an agent on a Python without packages. This nvidia-smi is a stand-in with the lines of its manual."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -L ] && cat <<END\n{lines}\nEND\n')
    program.chmod(0o755)
    code = (
        "import os; from bireme.resources.devices import discover;"
        f"print(discover('auto', os.environ, {make(tmp_path, 'dev/nvidia0')!r}).ids)"
    )
    (tmp_path / "pynvml.py").write_text("raise ImportError('not here')")
    argv = [sys.executable, "-c", code]
    home = os.path.dirname(os.path.dirname(bireme.__file__))
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": f"{tmp_path}:{home}"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"{ids}\n"


def test_device_nodes_are_counted_when_nvml_fails(nvml: Path, tmp_path: Path) -> None:
    # A container's nodes keep their numbers; CUDA counts them from 0.
    root = make(tmp_path, "dev/nvidiactl", "dev/nvidia3", "dev/nvidia5", "dev/nvidia-modeset")
    assert with_nvml(nvml, "fail", root) == Devices("cuda", ("0", "1"))


def test_wsl_without_a_working_nvml_has_no_gpu(nvml: Path, tmp_path: Path) -> None:
    assert with_nvml(nvml, "fail", make(tmp_path, "dev/dxg")).accelerator == "cpu"


def test_mig_devices_stand_for_their_gpu(nvml: Path, tmp_path: Path) -> None:
    root = make(tmp_path, "dev/nvidia0")
    found = with_nvml(nvml, "mig:3", root)
    assert found.ids == found.uuids == ("MIG-0-0", "MIG-0-2", "MIG-0-4")
    assert found.names == ("Fake H200 MIG 1g.18gb",) * 3
    assert usable_slots(found, num_gpus=2) == (("MIG-0-0", "MIG-0-2"), ())


def test_beside_mig_devices_whole_gpus_go_by_uuid(nvml: Path, tmp_path: Path) -> None:
    root = make(tmp_path, "dev/nvidia0")
    assert with_nvml(nvml, "plain,mig:1,mig:0", root).ids == ("GPU-0", "MIG-1-0")


def test_a_gpu_in_mig_mode_without_devices_is_no_gpu(nvml: Path, tmp_path: Path) -> None:
    root = make(tmp_path, "dev/nvidia0")
    assert with_nvml(nvml, "mig:0", root).accelerator == "cpu"
    message = with_nvml(nvml, "mig:0", root, "cuda")
    assert str(message).startswith("--accelerator: no NVIDIA GPU was found")


def test_a_hidden_gpu_is_not_used(nvml: Path, tmp_path: Path) -> None:
    root = make(tmp_path, "dev/nvidia0")
    for value in ("", "-1", "NoDevFiles"):
        found = with_nvml(nvml, "plain", root, CUDA_VISIBLE_DEVICES=value)
        assert (found.accelerator, found.visible, found.variable) == ("cpu", (), "CUDA_VISIBLE_DEVICES")
        slots, notes = usable_slots(found)
        assert slots == ("0",)
        assert notes == ("CUDA_VISIBLE_DEVICES leaves no device visible: one rank on the CPU (--num_gpus N for more)",)
        assert usable_slots(found, num_gpus=2) == (
            ("0", "1"),
            ("CUDA_VISIBLE_DEVICES leaves no device visible: 2 ranks on the CPU",),
        )


def test_a_hidden_gpu_that_is_asked_for_is_an_error(nvml: Path, tmp_path: Path) -> None:
    found = with_nvml(nvml, "plain,plain", make(tmp_path, "dev/nvidia0"), "cuda", CUDA_VISIBLE_DEVICES="")
    assert found.accelerator == "cuda"
    with pytest.raises(BadInputError, match="CUDA_VISIBLE_DEVICES: leaves no device visible"):
        usable_slots(found)
    assert usable_slots(found, filtered=True)[0] == ("0", "1"), "the command line goes before the variable"


# --- AMD --------------------------------------------------------------------------------------

KFD = "sys/class/kfd/kfd/topology/nodes"


def rocm(root: Path, gpus: int = 2) -> str:
    """A processor and some GPUs, as the kernel's compute driver publishes them."""
    make(root, "dev/kfd")
    write(root, f"{KFD}/0/properties", "cpu_cores_count 64\nsimd_count 0\nmem_banks_count 1\n")
    for gpu in range(1, gpus + 1):
        text = "cpu_cores_count 0\nsimd_count 440\ngfx_target_version 90010\n"
        write(root, f"{KFD}/{gpu}/properties", text)
    return str(root)


def test_rocm(tmp_path: Path) -> None:
    root = rocm(tmp_path, 11)
    found = discover("auto", {}, root)
    assert found == Devices("rocm", tuple(map(str, range(11))), None, ("gfx90a",) * 11)


def test_rocm_needs_the_device_and_readable_properties(tmp_path: Path) -> None:
    root = rocm(tmp_path)
    (tmp_path / KFD / "2/properties").unlink()
    assert discover("auto", {}, root).ids == ("0",)
    (tmp_path / "dev/kfd").unlink()
    assert discover("auto", {}, root).accelerator == "cpu"
    with pytest.raises(BadInputError, match="no AMD GPU"):
        discover("rocm", {}, root)


def test_hip_goes_before_cuda(tmp_path: Path) -> None:
    root = rocm(tmp_path)
    found = discover("auto", {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, root)
    assert (found.visible, found.variable) == (("1",), "HIP_VISIBLE_DEVICES")
    found = discover("auto", {"CUDA_VISIBLE_DEVICES": "0"}, root)
    assert (found.visible, found.variable) == (("0",), "CUDA_VISIBLE_DEVICES")


def test_rocr_acts_below_hip(tmp_path: Path) -> None:
    root = rocm(tmp_path, 4)
    found = discover("auto", {"ROCR_VISIBLE_DEVICES": "2,GPU-8932f937"}, root)
    assert (found.ids, found.visible) == (("0", "1"), None)
    found = discover("auto", {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, root)
    assert usable_slots(found) == (("1",), ())
    assert usable_slots(found, num_gpus=2)[0] == ("0", "1")
    found = discover("auto", {"ROCR_VISIBLE_DEVICES": ""}, root)
    assert (found.accelerator, found.reason) == ("cpu", "ROCR_VISIBLE_DEVICES leaves no device visible")
    found = discover("rocm", {"ROCR_VISIBLE_DEVICES": "-1"}, root)
    for filtered in (False, True):
        with pytest.raises(BadInputError, match="ROCR_VISIBLE_DEVICES: leaves no device"):
            usable_slots(found, filtered=filtered)


# --- Intel ------------------------------------------------------------------------------------


def intel(root: Path, number: int, address: str, vendor: str = "0x8086", *inside: str) -> str:
    """A render node and the PCI device behind it."""
    device = root / "sys/devices/pci0000:00" / address
    write(device, "vendor", vendor + "\n")
    make(device, *inside)
    (root / f"sys/class/drm/renderD{number}").mkdir(parents=True)
    (root / f"sys/class/drm/renderD{number}/device").symlink_to(device)
    return make(root, f"dev/dri/renderD{number}")


def test_a_card_of_intels_is_an_accelerator(tmp_path: Path) -> None:
    intel(tmp_path, 128, "0000:00:02.0")
    intel(tmp_path, 129, "0000:03:00.0")
    root = intel(tmp_path, 130, "0000:04:00.0", "0x1002")
    assert discover("auto", {}, root) == Devices("xpu", ("0",))
    assert discover("xpu", {"ZE_AFFINITY_MASK": "0"}, root) == Devices(
        "xpu", ("0", "1"), ("0",), variable="ZE_AFFINITY_MASK"
    )


def test_a_laptops_graphics_count_only_when_asked_for(tmp_path: Path) -> None:
    root = intel(tmp_path, 128, "0000:00:02.0", "0x8086", "tile0/", "tile1/")
    assert discover("auto", {}, root).accelerator == "cpu"
    assert discover("xpu", {}, root).ids == ("0",)


def test_a_card_whose_device_the_container_lacks(tmp_path: Path) -> None:
    root = intel(tmp_path, 128, "0000:03:00.0")
    (tmp_path / "dev/dri/renderD128").unlink()
    with pytest.raises(BadInputError, match="no Intel GPU"):
        discover("xpu", {}, root)


@pytest.mark.parametrize("inside", [("tile0/", "tile1/"), ("drm/card1/gt/gt0/", "drm/card1/gt/gt1/")])
def test_each_tile_is_a_device(tmp_path: Path, inside: tuple[str, ...]) -> None:
    intel(tmp_path, 128, "0000:03:00.0", "0x8086", *inside)
    root = intel(tmp_path, 129, "0000:04:00.0", "0x8086", *inside)
    assert discover("auto", {}, root).ids == ("0", "1", "2", "3")
    assert discover("auto", {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, root).ids == ("0", "1")


# --- Ascend, and none -------------------------------------------------------------------------


def test_npu(tmp_path: Path) -> None:
    root = make(tmp_path, "dev/davinci_manager", *(f"dev/davinci{n}" for n in range(3)))
    found = discover("auto", {"ASCEND_RT_VISIBLE_DEVICES": "1,2"}, root)
    assert found == Devices("npu", ("0", "1", "2"), ("1", "2"), variable="ASCEND_RT_VISIBLE_DEVICES")


def test_no_accelerator(tmp_path: Path) -> None:
    found = discover("auto", {"CUDA_VISIBLE_DEVICES": "0"}, str(tmp_path))
    assert (found.accelerator, found.visible) == ("cpu", None)
    assert len(found.ids) == len(os.sched_getaffinity(0))
    assert usable_slots(found) == (("0",), ("no accelerator found: one rank on the CPU (--num_gpus N for more)",))
    assert usable_slots(found, num_gpus=3) == (("0", "1", "2"), ("no accelerator found: 3 ranks on the CPU",))
    assert usable_slots(found, filtered=True) == (found.ids, ("no accelerator found: running on the CPU",))


def test_the_cpu_when_asked_for(tmp_path: Path) -> None:
    found = discover("cpu", {}, rocm(tmp_path))
    assert (found.accelerator, found.reason) == ("cpu", "")
    assert usable_slots(found) == (("0",), ("one rank on the CPU (--num_gpus N for more)",))
    assert usable_slots(found, num_gpus=2) == (("0", "1"), ())
    assert usable_slots(found, filtered=True) == (found.ids, ())


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu", "npu"])
def test_what_is_asked_for_must_be_there(tmp_path: Path, kind: str) -> None:
    with pytest.raises(BadInputError, match="found on this machine") as caught:
        discover(kind, {}, str(tmp_path))
    assert caught.value.where == "--accelerator"
    assert "--accelerator cpu" in caught.value.hint


def test_an_unknown_accelerator(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="unknown accelerator: 'tpu'"):
        discover("tpu", {}, str(tmp_path))


def test_the_variables_of_the_workers() -> None:
    assert visible_variables("cuda") == ("CUDA_VISIBLE_DEVICES",)
    assert visible_variables("rocm") == ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    assert visible_variables("xpu") == ("ZE_AFFINITY_MASK",)
    assert visible_variables("npu") == ("ASCEND_RT_VISIBLE_DEVICES",)
    assert visible_variables("cpu") == ()


def test_this_machine() -> None:
    found = discover("auto", os.environ)
    assert found.ids
    assert len(found.names) in (0, len(found.ids))


# --- what a job gets --------------------------------------------------------------------------

FOUR = Devices("cuda", ("0", "1", "2", "3"))


def seen(value: str) -> Devices:
    """Four GPUs of which the user's variable names some."""
    words = tuple(value.split(",")) if value else ()
    return FOUR.replace(visible=words, variable="CUDA_VISIBLE_DEVICES")


def test_all_devices_or_those_that_the_user_names() -> None:
    assert usable_slots(FOUR) == (("0", "1", "2", "3"), ())
    assert usable_slots(seen("3,1")) == (("3", "1"), ()), "in the user's order"
    assert usable_slots(seen("GPU-aa,GPU-bb")) == (("GPU-aa", "GPU-bb"), ())


def test_the_command_line_goes_before_the_variable() -> None:
    note = "ignoring CUDA_VISIBLE_DEVICES=3,1: the command line says which devices to use"
    assert usable_slots(seen("3,1"), num_gpus=2) == (("0", "1"), (note,))
    assert usable_slots(seen("3,1"), filtered=True) == (("0", "1", "2", "3"), (note,))
    assert usable_slots(seen("0,1,2,3"), num_gpus=2) == (("0", "1"), ()), "nothing is lost: nothing is said"
    assert usable_slots(FOUR, num_gpus=4) == (("0", "1", "2", "3"), ())


@pytest.mark.parametrize(
    ("devices", "num_gpus", "message"),
    [
        (FOUR, 5, "--num_gpus: 5 GPUs requested, 4 available"),
        (FOUR.replace(ids=("0",)), 2, "--num_gpus: 2 GPUs requested, 1 available"),
        (FOUR, 0, "--num_gpus: must be at least 1, not 0"),
        (FOUR, -1, "--num_gpus: must be at least 1, not -1"),
        (Devices("cpu", ("0",)), 0, "--num_gpus: must be at least 1, not 0"),
        (Devices("cpu", ("0",)), 10**12, "--num_gpus: 1000000000000 ranks are too many"),
        (seen("0,4"), None, "CUDA_VISIBLE_DEVICES: no such device: 4"),
        (seen("1,1"), None, "CUDA_VISIBLE_DEVICES: device 1 is listed twice"),
    ],
)
def test_what_a_job_cannot_get(devices: Devices, num_gpus: int | None, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        usable_slots(devices, num_gpus=num_gpus)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("2,0", ("2", "0")),
        (" 2 , 0 ", ("2", "0")),
        ("0,2,-1,1", ("0", "2")),
        ("0,,1", ("0",)),
        ("GPU-8932f937,GPU-1", ("GPU-8932f937", "GPU-1")),
        ("MIG-GPU-8932f937/1/0", ("MIG-GPU-8932f937/1/0",)),
        ("0,x,1", ("0",)),
        ("0;1", ("0",)),
        ("0 1,2\n3", ("0", "2")),
        ("\u0661", ()),
    ],
)
def test_a_list_ends_where_the_runtimes_end_it(tmp_path: Path, value: str, visible: tuple[str, ...]) -> None:
    assert discover("rocm", {"CUDA_VISIBLE_DEVICES": value}, rocm(tmp_path)).visible == visible


@settings(deadline=None)
@given(
    st.one_of(st.text(), st.text("0123456789,-GPUMI x.", max_size=12)),
    st.none() | st.integers(-2, 6),
    st.booleans(),
    st.sampled_from(["auto", "npu", "cpu"]),
)
def test_any_value_of_the_variable(
    tmp_path_factory: pytest.TempPathFactory, value: str, num_gpus: int | None, filtered: bool, kind: str
) -> None:
    root = tmp_path_factory.getbasetemp() / "npus"
    make(root, "dev/davinci0", "dev/davinci1")
    devices = discover(kind, {"ASCEND_RT_VISIBLE_DEVICES": value}, str(root))
    try:
        slots, notes = usable_slots(devices, num_gpus=num_gpus, filtered=filtered)
    except BadInputError as error:
        assert len(str(error).splitlines()) <= 2
    else:
        assert slots and len(set(slots)) == len(slots)
        assert not any(len(note.splitlines()) > 1 for note in notes)
