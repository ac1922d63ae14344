"""Asks the NVIDIA driver for its GPUs and their parts: through pynvml, or where that is missing, ``nvidia-smi -L``."""

from __future__ import annotations

from bireme.isolated import find_packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Gpu: TypeAlias = tuple[str, str, str]
    """(index, UUID, name). Where a GPU is divided (MIG), only UUIDs are sure, and the indexes are ""."""

_WAIT = 60.0
"""Seconds for ``nvidia-smi``, which is slow where the driver is not loaded permanently."""


def gpus(environ: Mapping[str, str]) -> list[Gpu] | None:
    """The GPUs; where one is divided (MIG), its parts instead. ``None``: the driver cannot be asked."""
    try:
        return _by_nvml()
    except ImportError:  # an agent may run on a Python without it
        return _by_nvidia_smi(environ)
    except Exception:  # it is too old, or does not match the driver
        return None


def _by_nvml() -> list[Gpu]:
    find_packages()
    import pynvml as nvml

    nvml.nvmlInit()
    try:
        found: list[Gpu] = []
        any_mig = False
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            try:
                mig = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
            except nvml.NVMLError:  # the GPU or the driver does not support MIG
                mig = False
            if not mig:
                found.append((str(index), nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetName(gpu)))
                continue
            any_mig = True
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                try:
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
                except nvml.NVMLError:  # no MIG device was created at this index
                    continue
                found.append(("", nvml.nvmlDeviceGetUUID(part), nvml.nvmlDeviceGetName(part)))
        return [("", uuid, name) for _, uuid, name in found] if any_mig else found
    finally:
        nvml.nvmlShutdown()


def _by_nvidia_smi(environ: Mapping[str, str]) -> list[Gpu] | None:
    import re
    import subprocess

    try:
        argv = ("nvidia-smi", "-L")
        done = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, timeout=_WAIT, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    found: list[Gpu] = []
    name, any_mig = "", False
    for line in done.stdout.splitlines():
        if gpu := re.match(r"GPU (\d+): (.*) \(UUID: (\S+)\)", line):
            name = gpu[2]
            found.append((gpu[1], gpu[3], name))
        elif part := re.match(r" +(MIG \S+) +Device +\d+: \(UUID: (\S+)\)", line):
            if found and found[-1][2] == name and found[-1][0]:
                found.pop()  # the GPU whose part this is
            found.append(("", part[2], f"{name} {part[1]}"))
            any_mig = True
    return [("", uuid, name) for _, uuid, name in found] if any_mig else found
