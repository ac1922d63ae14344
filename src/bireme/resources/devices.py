"""Which accelerators this node has, and which of them a job gets; found without PyTorch.

Importing torch takes seconds and creates threads, so we look where the drivers leave their traces:

========  ==============================================================================
cuda      device nodes and ``/proc/driver/nvidia`` say whether asking NVML is worthwhile;
          NVML then tells the GPUs, their names and MIG devices. Where it fails, the
          device nodes are counted.
rocm      ``/dev/kfd`` and the topology that the kernel's compute driver publishes. AMD
          graphics on the processor's die count as well: the kernel lists them only
          where ROCm can compute on them.
xpu       Intel render nodes. Graphics on the processor's die (always PCI address 00:02.0)
          count only when xpu is asked for, else every laptop would have an accelerator.
npu       ``/dev/davinci<N>``.
cpu       what is left; the slots are numbers without a device behind them.
========  ==============================================================================

The user's own list (``CUDA_VISIBLE_DEVICES`` and its kin) is opaque to us, except that we end it
where the runtimes do: at ``-1`` or any other word that cannot be a device. An empty list means no
device at all, and ``auto`` then runs on the CPU whatever else is asked for: a GPU that was hidden
on purpose is never used.

On ROCm three variables come together. HIP reads ``HIP_VISIBLE_DEVICES`` or, without it,
``CUDA_VISIBLE_DEVICES``, so both are given the same list. ``ROCR_VISIBLE_DEVICES`` (which Slurm
sets) acts below them: HIP's indices count only the devices which that leaves. Therefore it is
never changed; the devices that it hides are to us as if they were not there.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.resources._files import listing, read
from bireme.resources.cores import usable
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ACCELERATORS = ("cuda", "rocm", "xpu", "npu", "cpu")
"""In the order in which ``auto`` looks for them."""

_VARIABLES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
    "cpu": (),
}
_NOUNS = {"cuda": "NVIDIA GPU", "rocm": "AMD GPU", "xpu": "Intel GPU", "npu": "Ascend NPU"}
_ROCR = "ROCR_VISIBLE_DEVICES"
_DIGITS = frozenset("0123456789")
_IN_WORDS = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-/._")
_MOST_ON_CPU = 4096  # far above any use; a slip of the keyboard shall not fill the memory
_OPTION = "--accelerator"
_USE_CPU = "--accelerator cpu runs the job on the CPU"


class Devices(Value):
    """What a node offers.

    A GPU in MIG mode cannot be used itself; its MIG devices stand in ``ids`` by their UUIDs, and
    all other GPUs then too, because CUDA does not take indices and UUIDs in one list. CUDA shows a
    process only the first MIG device of its list, so each rank must be given its own alone.

    Attributes:
        accelerator: ``cuda``, ``rocm``, ``xpu``, ``npu`` or ``cpu``.
        ids: all devices of the node; for ``cpu`` as many numbers as cores may be used.
        visible: what the user's own variable names, in the user's order; ``None`` without one.
        names: the models, one for each of ``ids``, or nothing.
        uuids: one for each of ``ids``, or nothing.
        variable: the variable that ``visible`` comes from, or that hid everything.
        reason: why it is the CPU, where nobody asked for it.
    """

    accelerator: str
    ids: tuple[str, ...]
    visible: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    variable: str = ""
    reason: str = ""


class _Found(Value):
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()


def visible_variables(accelerator: str, *, declared: bool = False) -> tuple[str, ...]:
    """The variables that tell a worker its devices; all are to be set to the same list.

    Args:
        declared: the slots were declared, by a hostfile or as world info. They are bound then even where no
            accelerator is found, as DeepSpeed does.
    """
    return _VARIABLES["cuda" if declared and accelerator == "cpu" else accelerator]


def discover(accelerator: str, environ: Mapping[str, str], root: str = "/") -> Devices:
    """Find this node's devices.

    Args:
        accelerator: one of :data:`ACCELERATORS`, or ``auto`` for the first that is there.
        environ: the user's environment.
        root: where ``/dev``, ``/proc`` and ``/sys`` are looked for.

    Raises:
        BadInputError: the accelerator that was asked for is unknown or not there.
    """
    asked = accelerator != "auto"
    if asked and accelerator not in ACCELERATORS:
        raise BadInputError(
            f"{accelerator!r} is not an accelerator",
            hint=f"it is auto or one of {', '.join(ACCELERATORS)}",
            where=_OPTION,
        )
    for kind in (accelerator,) if asked else ACCELERATORS:
        if kind == "cpu":
            break
        found = _find(kind, environ, asked, root)
        if not found.ids:
            continue
        variable, visible = _visible(kind, environ)
        if kind == "rocm" and _ROCR in environ:
            # Which model is left under which index is ROCR's secret: it may reorder them.
            found = _Found(found.ids[: len(_words(environ[_ROCR]))])
            if not found.ids:
                variable, visible = _ROCR, ()
        if visible == () and not asked:
            return _cpu(f"{variable} leaves no device visible", variable)
        return Devices(kind, found.ids, visible, found.names, found.uuids, variable)
    if accelerator in _NOUNS:
        raise BadInputError(f"no {_NOUNS[accelerator]} was found on this machine", hint=_USE_CPU, where=_OPTION)
    return _cpu("" if asked else "no accelerator found")


def local_slots(
    devices: Devices, *, num_gpus: int | None = None, filtered: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The slots that this node offers a job, and the lines to say about it.

    Args:
        devices: what the node has.
        num_gpus: how many of them the user wants.
        filtered: the user names slots (``--include``, ``--exclude``): all are offered to choose from.

    Raises:
        BadInputError: ``num_gpus`` is less than 1 or more than there are; or the user's variable
            hides all devices of an accelerator that was asked for, or names one that is not there.
    """
    if num_gpus is not None and num_gpus < 1:
        raise BadInputError(f"{num_gpus} is too few: at least 1 is needed", where="--num_gpus")
    if devices.accelerator == "cpu":
        return _cpu_slots(devices, num_gpus, filtered)
    chosen = filtered or num_gpus is not None
    if not devices.ids or (devices.visible == () and not chosen):
        raise BadInputError("leaves no device visible", hint=f"unset it; or {_USE_CPU}", where=devices.variable)
    if not chosen:
        if devices.visible is None:
            return devices.ids, ()
        _check_visible(devices, devices.visible)
        return devices.visible, ()
    if num_gpus is not None and num_gpus > len(devices.ids):
        there = "is 1" if len(devices.ids) == 1 else f"are {len(devices.ids)}"
        raise BadInputError(f"{num_gpus} GPUs are asked for, there {there}", hint=_USE_CPU, where="--num_gpus")
    notes: tuple[str, ...] = ()
    if devices.visible is not None and devices.visible != devices.ids:
        value = f"{devices.variable}={','.join(devices.visible)}"
        notes = (f"{value} is ignored: the command line says which devices to use",)
    return devices.ids[:num_gpus], notes


def remote_slots(
    devices: Devices, wanted: Sequence[str] | None, *, num_gpus: int | None = None, filtered: bool = False
) -> tuple[str, ...]:
    """The slots of a node of many, as device ids of that node.

    Args:
        devices: what the node has.
        wanted: the slots that the pool gives it; ``None``: whatever it has. Where a scheduler has set the node's
            variable, a number means a place in its list.
        num_gpus, filtered: as for :func:`local_slots`, where ``wanted`` is ``None``.

    Raises:
        BadInputError: the node has no such device.
    """
    if wanted is None:
        if devices.visible:  # the scheduler's word, or the node's: filters choose among these
            return local_slots(devices.replace(ids=devices.visible), num_gpus=num_gpus, filtered=filtered)[0]
        return local_slots(devices, num_gpus=num_gpus, filtered=filtered)[0]
    if devices.accelerator == "cpu":
        return tuple(wanted)
    offered = devices.ids if devices.visible is None else devices.visible
    slots = []
    for slot in wanted:
        if devices.visible is not None and slot.isdecimal() and int(slot) < len(offered):
            slots.append(offered[int(slot)])
        elif slot in offered:
            slots.append(slot)
        else:
            raise BadInputError(f"there is no device {slot}: there are {', '.join(offered) or 'none'}")
    return tuple(slots)


def slot_aliases(devices: Devices) -> dict[str, str]:
    """The devices' UUIDs, each with the slot id that stands for it in the pool."""
    return dict(zip(devices.uuids, devices.ids, strict=True) if devices.uuids else ())


def _cpu(reason: str, variable: str = "") -> Devices:
    return Devices("cpu", _numbered(usable()), () if variable else None, variable=variable, reason=reason)


def _cpu_slots(devices: Devices, num_gpus: int | None, filtered: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    why = f"{devices.reason}: " if devices.reason else ""
    if num_gpus is not None:
        if num_gpus > _MOST_ON_CPU:
            raise BadInputError(f"{num_gpus} ranks are too many for one CPU", where="--num_gpus")
        ranks = "one rank" if num_gpus == 1 else f"{num_gpus} ranks"
        return _numbered(num_gpus), (f"{why}{ranks} on the CPU",) if why else ()
    if filtered:
        return devices.ids, (f"{why}running on the CPU",) if why else ()
    return ("0",), (f"{why}one rank on the CPU (--num_gpus N for more)",)


def _check_visible(devices: Devices, visible: tuple[str, ...]) -> None:
    """Refuse what the runtime would take for fewer devices than ranks, or for none."""
    for place, word in enumerate(visible):
        if word in visible[:place]:
            raise BadInputError(f"device {word[:60]} stands there twice", where=devices.variable)
        # Only an index into indices can be judged: UUIDs may be shortened, XPU tiles be "0.1".
        indices = devices.ids == _numbered(len(devices.ids))
        if indices and word.isdecimal() and word not in devices.ids and devices.accelerator != "xpu":
            raise BadInputError(
                f"there is no device {word[:20]}", hint=f"they are 0 to {len(devices.ids) - 1}", where=devices.variable
            )


def _visible(kind: str, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...] | None]:
    for variable in _VARIABLES[kind]:
        if variable in environ:
            return variable, _words(environ[variable])
    return "", None


def _words(value: str) -> tuple[str, ...]:
    """The devices in a list of devices, up to the first word that cannot be one."""
    words: list[str] = []
    for word in map(str.strip, value.split(",")):
        # Like the runtimes, which read a number and do not mind what follows: "0;1" is device 0.
        end = next((place for place, char in enumerate(word) if char not in _IN_WORDS), len(word))
        if not (word[:1] in _DIGITS or word.startswith(("GPU-", "MIG-"))):
            break
        words.append(word[:end])
    return tuple(words)


def _find(kind: str, environ: Mapping[str, str], asked: bool, root: str) -> _Found:
    if kind == "cuda":
        return _find_cuda(root)
    if kind == "rocm":
        return _find_rocm(root)
    if kind == "xpu":
        return _find_xpu(root, asked, environ.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE")
    return _Found(_numbered(len(_indexed(os.path.join(root, "dev"), "davinci"))))


def _find_cuda(root: str) -> _Found:
    dev = os.path.join(root, "dev")
    nodes = _indexed(dev, "nvidia")
    hints = ("dev/nvidiactl", "dev/dxg")  # without a numbered node: old containers, and WSL
    if not (
        nodes
        or any(os.path.exists(os.path.join(root, hint)) for hint in hints)
        or listing(os.path.join(root, "proc/driver/nvidia/gpus"))
    ):
        return _Found()
    try:
        return _ask_nvml()
    except Exception:  # pynvml is missing or too old, the driver's library does not fit the driver, ...
        return _Found(_numbered(len(nodes)))


def _ask_nvml() -> _Found:
    import pynvml as nvml

    nvml.nvmlInit()
    try:
        found: list[tuple[str, str, str]] = []
        any_mig = False
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            try:
                mig = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
            except nvml.NVMLError:  # a model, or a driver, that knows nothing of MIG
                mig = False
            if not mig:
                found.append((str(index), nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetName(gpu)))
                continue
            any_mig = True
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                try:
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
                except nvml.NVMLError:  # nothing was made in this place
                    continue
                found.append(("", nvml.nvmlDeviceGetUUID(part), nvml.nvmlDeviceGetName(part)))
    finally:
        nvml.nvmlShutdown()
    uuids = tuple(uuid for _, uuid, _ in found)
    ids = uuids if any_mig else tuple(index for index, _, _ in found)
    return _Found(ids, tuple(name for *_, name in found), uuids)


def _find_rocm(root: str) -> _Found:
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return _Found()
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    names: list[str] = []
    for node in sorted((node for node in listing(nodes) if node.isdecimal()), key=int):
        # A device that a cgroup denies us has unreadable properties, for the runtime as for us.
        lines = read(os.path.join(nodes, node, "properties")).splitlines()
        properties = dict(line.split(" ", 1) for line in lines if " " in line)
        if properties.get("simd_count", "0") != "0":
            names.append(_gfx(properties.get("gfx_target_version", "")))
    return _Found(_numbered(len(names)), tuple(names))


def _gfx(version: str) -> str:
    """``90010`` as the compilers write it: ``gfx90a``."""
    if not version.isdecimal() or len(version) > 6:
        return "AMD GPU"
    number = int(version)
    return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"


def _find_xpu(root: str, asked: bool, composite: bool) -> _Found:
    drm = os.path.join(root, "sys/class/drm")
    count = 0
    for number in _indexed(drm, "renderD"):
        device = os.path.join(drm, f"renderD{number}", "device")
        # A container sees the whole of /sys, but only its own device nodes.
        if read(os.path.join(device, "vendor")) != "0x8086" or not os.path.exists(
            os.path.join(root, f"dev/dri/renderD{number}")
        ):
            continue
        if os.path.basename(os.path.realpath(device)).endswith(":00:02.0"):
            count += asked
        else:
            count += 1 if composite else _tiles(device)
    return _Found(_numbered(count))


def _tiles(device: str) -> int:
    """How many devices Level Zero makes of one card: unless told otherwise, one of each tile."""
    tiles = len(_indexed(device, "tile"))  # the xe driver
    if not tiles:
        for card in _indexed(os.path.join(device, "drm"), "card"):  # i915
            tiles = len(_indexed(os.path.join(device, "drm", f"card{card}", "gt"), "gt"))
    return max(tiles, 1)


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _indexed(directory: str, prefix: str) -> list[int]:
    """The numbers N for which ``directory`` has an entry ``<prefix>N``, in order."""
    ends = (name[len(prefix) :] for name in listing(directory) if name.startswith(prefix))
    return sorted(int(end) for end in ends if end.isascii() and end.isdecimal())
