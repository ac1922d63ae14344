"""Finds the accelerators of this node and the slots that a job may use, without importing PyTorch.

Importing torch takes seconds and creates threads, so we look at what the drivers publish:

========  ==============================================================================
cuda      If device nodes or ``/proc/driver/nvidia`` exist, NVML is asked for the GPUs, their
          names and MIG devices. If NVML fails, the device nodes are counted.
rocm      ``/dev/kfd`` and the topology that the kernel's compute driver publishes. AMD
          graphics inside the processor count as well: the kernel lists them only if ROCm
          can compute on them.
xpu       Intel render nodes. Graphics inside the processor (always PCI address 00:02.0)
          count only if the user asks for xpu, else every laptop would have an accelerator.
npu       ``/dev/davinci<N>``.
cpu       Used if nothing else is found; the slots are numbers without a device.
========  ==============================================================================

The user's own list (``CUDA_VISIBLE_DEVICES`` and the like) is taken as it is, except that it ends where it ends for the
runtimes: at ``-1`` or any other word that cannot be a device. An empty list means no device at all. ``auto`` then uses
the CPU, whatever other options say: a GPU that was hidden on purpose is never used.

ROCm has three variables. HIP reads ``HIP_VISIBLE_DEVICES`` or, without it, ``CUDA_VISIBLE_DEVICES``, so both are set to
the same list. ``ROCR_VISIBLE_DEVICES`` (which Slurm sets) works below them: HIP's indices count only the devices that
it leaves. It is therefore never changed, and the devices that it hides count as absent.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.job import ACCELERATORS
from bireme.regular_file import listing, text_of
from bireme.resources.cores import usable
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
_MOST_ON_CPU = 4096  # far above any use; a typing error must not fill the memory
_OPTION = "--accelerator"
_USE_CPU = "--accelerator cpu runs the job on the CPU"


class Devices(Value):
    """The devices of a node.

    A GPU in MIG mode cannot be used itself; ``ids`` has the UUIDs of its MIG devices instead, and then also the UUIDs
    of all other GPUs, because CUDA does not take indices and UUIDs in one list. CUDA shows a process only the first
    MIG device of its list, so each rank must be given only its own.

    Attributes:
        accelerator: ``cuda``, ``rocm``, ``xpu``, ``npu`` or ``cpu``.
        ids: all devices of the node; for ``cpu``, one number for each usable core.
        visible: the devices that the user's own variable names, in its order; ``None`` if it is not set.
        names: the models, one for each of ``ids``, or empty.
        uuids: the UUIDs, one for each of ``ids``, or empty.
        variable: the name of the variable that set ``visible``, or that hides all devices.
        reason: why the CPU is used although the user did not ask for it.
    """

    accelerator: str
    ids: tuple[str, ...]
    visible: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    variable: str = ""
    reason: str = ""


class _Found(Value):
    """The devices of one kind: their ids, models and UUIDs."""

    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()


def visible_variables(accelerator: str, *, declared: bool = False) -> tuple[str, ...]:
    """The environment variables that select a worker's devices; all are set to the same list.

    Args:
        declared: a hostfile or world info declares the slots. They are then bound even if no accelerator is found,
            as DeepSpeed does.
    """
    return _VARIABLES["cuda" if declared and accelerator == "cpu" else accelerator]


def discover(accelerator: str, environ: Mapping[str, str], root: str = "/") -> Devices:
    """Find this node's devices.

    Args:
        root: the directory that contains ``dev``, ``proc`` and ``sys``.
    """
    asked = accelerator != "auto"
    if asked and accelerator not in ACCELERATORS:
        hint = f"expected auto or one of {', '.join(ACCELERATORS)}"
        raise BadInputError(f"unknown accelerator: {accelerator!r}", hint=hint, where=_OPTION)
    for kind in (accelerator,) if asked else ACCELERATORS:
        if kind == "cpu":
            break
        found = _find(kind, environ, asked, root)
        if not found.ids:
            continue
        variable, visible = _visible(kind, environ)
        if kind == "rocm" and _ROCR in environ:
            # ROCR may reorder the devices, so the models of those that are left are unknown.
            found = _Found(found.ids[: len(_words(environ[_ROCR]))])
            if not found.ids:
                variable, visible = _ROCR, ()
        if visible == () and not asked:
            return _cpu(f"{variable} leaves no device visible", variable)
        return Devices(
            accelerator=kind, ids=found.ids, visible=visible, names=found.names, uuids=found.uuids, variable=variable
        )
    if accelerator in _NOUNS:
        raise BadInputError(f"no {_NOUNS[accelerator]} was found on this machine", hint=_USE_CPU, where=_OPTION)
    return _cpu("" if asked else "no accelerator found")


def usable_slots(
    devices: Devices,
    declared: Sequence[str] | None = None,
    *,
    num_gpus: int | None = None,
    filtered: bool = False,
    scheduled: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The slots that a job may use on this node, as device ids, and notes for the user.

    Args:
        declared: those that the pool declares; ``None``: all that are found. If a scheduler has set the node's
            variable, a number is an index into its list.
        num_gpus: the number of slots that the user wants; ``None``: all visible ones.
        filtered: whether the user selects slots (``--include``, ``--exclude``), so that all are returned.
        scheduled: whether the node's variable was set for the job, so that the user chooses among its devices. Where
            the command is typed, what it says goes before the variable.
    """
    if declared is not None:
        return _declared(devices, declared), ()
    if scheduled and devices.visible:
        devices = devices.replace(ids=devices.visible)
    if num_gpus is not None and num_gpus < 1:
        raise BadInputError(f"must be at least 1, not {num_gpus}", where="--num_gpus")
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
        raise BadInputError(
            f"{num_gpus} GPUs requested, {len(devices.ids)} available", hint=_USE_CPU, where="--num_gpus"
        )
    notes: tuple[str, ...] = ()
    if devices.visible is not None and devices.visible != devices.ids:
        value = f"{devices.variable}={','.join(devices.visible)}"
        notes = (f"ignoring {value}: the command line says which devices to use",)
    return devices.ids[:num_gpus], notes


def _declared(devices: Devices, declared: Sequence[str]) -> tuple[str, ...]:
    """The declared slots as device ids."""
    if devices.accelerator == "cpu":
        return tuple(declared)
    offered = devices.ids if devices.visible is None else devices.visible
    slots = []
    for slot in declared:
        if devices.visible is not None and slot.isdecimal() and int(slot) < len(offered):
            slots.append(offered[int(slot)])
        elif slot in offered:
            slots.append(slot)
        else:
            raise BadInputError(f"no such device: {slot} (available: {', '.join(offered) or 'none'})")
    return tuple(slots)


def slot_aliases(devices: Devices) -> dict[str, str]:
    """The UUIDs of the devices, each with its slot id in the pool."""
    return dict(zip(devices.uuids, devices.ids, strict=True) if devices.uuids else ())


def _cpu(reason: str, variable: str = "") -> Devices:
    return Devices(
        accelerator="cpu", ids=_numbered(usable()), visible=() if variable else None, variable=variable, reason=reason
    )


def _cpu_slots(devices: Devices, num_gpus: int | None, filtered: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    why = f"{devices.reason}: " if devices.reason else ""
    if num_gpus is not None:
        if num_gpus > _MOST_ON_CPU:
            raise BadInputError(
                f"{num_gpus} ranks are too many for the CPU (at most {_MOST_ON_CPU})", where="--num_gpus"
            )
        ranks = "one rank" if num_gpus == 1 else f"{num_gpus} ranks"
        return _numbered(num_gpus), (f"{why}{ranks} on the CPU",) if why else ()
    if filtered:
        return devices.ids, (f"{why}running on the CPU",) if why else ()
    return ("0",), (f"{why}one rank on the CPU (--num_gpus N for more)",)


def _check_visible(devices: Devices, visible: tuple[str, ...]) -> None:
    """Refuse a list that the runtime would read as fewer devices than ranks, or as none."""
    for place, word in enumerate(visible):
        if word in visible[:place]:
            raise BadInputError(f"device {word[:60]} is listed twice", where=devices.variable)
        # Only indices can be checked: UUIDs may be shortened, and XPU tiles look like "0.1".
        indices = devices.ids == _numbered(len(devices.ids))
        if indices and word.isdecimal() and word not in devices.ids and devices.accelerator != "xpu":
            raise BadInputError(
                f"no such device: {word[:20]}", hint=f"available: 0 to {len(devices.ids) - 1}", where=devices.variable
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
        # Like the runtimes, which read a number and ignore what follows: "0;1" is device 0.
        end = next((place for place, char in enumerate(word) if char not in _IN_WORDS), len(word))
        if not (word[:1] in _DIGITS or word.startswith(("GPU-", "MIG-"))):
            break
        words.append(word[:end])
    return tuple(words)


def _find(kind: str, environ: Mapping[str, str], asked: bool, root: str) -> _Found:
    if kind == "cuda":
        return _find_cuda(root, environ)
    if kind == "rocm":
        return _find_rocm(root)
    if kind == "xpu":
        return _find_xpu(root, asked, environ.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE")
    return _Found(_numbered(len(_indexed(os.path.join(root, "dev"), "davinci"))))


def _find_cuda(root: str, environ: Mapping[str, str]) -> _Found:
    dev = os.path.join(root, "dev")
    nodes = _indexed(dev, "nvidia")
    hints = ("dev/nvidiactl", "dev/dxg")  # without a numbered node: old containers, and WSL
    if not (
        nodes
        or any(os.path.exists(os.path.join(root, hint)) for hint in hints)
        or listing(os.path.join(root, "proc/driver/nvidia/gpus"))
    ):
        return _Found()
    from bireme.resources import nvidia

    found = nvidia.gpus(environ)
    if found is None:
        return _Found(_numbered(len(nodes)))
    uuids = tuple(uuid for _, uuid, _ in found)
    return _Found(tuple(index or uuid for index, uuid, _ in found), tuple(name for *_, name in found), uuids)


def _find_rocm(root: str) -> _Found:
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return _Found()
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    names: list[str] = []
    for node in sorted((node for node in listing(nodes) if node.isdecimal()), key=int):
        # The properties of a device that a cgroup denies are not readable, for the runtime and for us.
        lines = text_of(os.path.join(nodes, node, "properties")).splitlines()
        properties = dict(line.split(" ", 1) for line in lines if " " in line)
        if properties.get("simd_count", "0") != "0":
            names.append(_gfx(properties.get("gfx_target_version", "")))
    return _Found(_numbered(len(names)), tuple(names))


def _gfx(version: str) -> str:
    """The compiler's name of a version: ``90010`` becomes ``gfx90a``."""
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
        if text_of(os.path.join(device, "vendor")) != "0x8086" or not os.path.exists(
            os.path.join(root, f"dev/dri/renderD{number}")
        ):
            continue
        if os.path.basename(os.path.realpath(device)).endswith(":00:02.0"):
            count += asked
        else:
            count += 1 if composite else _tiles(device)
    return _Found(_numbered(count))


def _tiles(device: str) -> int:
    """The number of devices that Level Zero makes of one card: by default, one for each tile."""
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
