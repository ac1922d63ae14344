"""Asks the NVIDIA driver for GPUs, their parts and memory: by pynvml, or for the names by ``nvidia-smi -L``."""

from __future__ import annotations

from bireme.isolated import find_packages
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any, TypeAlias

    Gpu: TypeAlias = tuple[str, str, str]
    """(index, UUID, name). Where a GPU is divided (MIG), only UUIDs are sure, and the indexes are ""."""

_WAIT = 60.0
"""Seconds for ``nvidia-smi``, which is slow where the driver is not loaded permanently."""


class DeviceUse(Value):
    """How much memory of a device is used, in bytes; ``by_process``: by pid, as far as the driver knows.

    ``busy``: the share of the last moment in which it computed, 0 to 1; -1: not known, as of a part (MIG).
    """

    index: str
    uuid: str
    used: int
    by_process: Mapping[int, int]
    busy: float = -1.0

    def is_meant(self, word: str) -> bool:
        """Whether an index or a UUID, possibly shortened, means this device."""
        return _is_meant(word, self.index, self.uuid)


class Driver:
    """The driver's answers about this machine's devices: GPUs, and where one is divided (MIG), its parts instead.

    Raises:
        Exception: pynvml or the driver is missing, or their versions do not match.
    """

    def __init__(self) -> None:
        find_packages()
        import pynvml

        self._nvml: Any = pynvml
        self._nvml.nvmlInit()
        try:
            self.devices = tuple(self._listed())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection to the driver."""
        self._nvml.nvmlShutdown()

    def _listed(self) -> Iterator[tuple[str, str, object, bool]]:
        """(index of the GPU, UUID, handle, whether it is a part of the GPU) of each device."""
        for index in range(self._nvml.nvmlDeviceGetCount()):
            gpu = self._nvml.nvmlDeviceGetHandleByIndex(index)
            divided = self._is_divided(gpu)
            for device in self._parts(gpu) if divided else (gpu,):
                yield str(index), str(self._nvml.nvmlDeviceGetUUID(device)), device, divided

    def _is_divided(self, gpu: object) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(gpu)[0] == self._nvml.NVML_DEVICE_MIG_ENABLE)
        except self._nvml.NVMLError:  # the GPU or the driver does not support MIG
            return False

    def _parts(self, gpu: object) -> Iterator[object]:
        for place in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                yield self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            except self._nvml.NVMLError:  # no MIG device was created at this index
                continue

    def name(self, device: object) -> str:
        """The model of a device."""
        return str(self._nvml.nvmlDeviceGetName(device))

    def size(self, device: object) -> int:
        """The memory of a device in bytes."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(device).total)

    def use(self) -> list[DeviceUse]:
        """What is used of each device now; a device that does not answer is left out."""
        found = []
        for index, uuid, device, _ in self.devices:
            try:
                used = int(self._nvml.nvmlDeviceGetMemoryInfo(device).used)
            except Exception:
                continue
            by_process, busy = self._by_process(device), self._busy(device)
            found.append(DeviceUse(index=index, uuid=uuid, used=used, by_process=by_process, busy=busy))
        return found

    def _busy(self, device: object) -> float:
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100
        except Exception:
            return -1.0

    def _by_process(self, device: object) -> dict[int, int]:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        except Exception:  # an old driver
            return {}
        return {int(each.pid): int(each.usedGpuMemory) for each in running if each.usedGpuMemory is not None}


def gpus(environ: Mapping[str, str]) -> list[Gpu] | None:
    """The GPUs; where one is divided (MIG), its parts instead. ``None``: the driver cannot be asked."""
    try:
        driver = Driver()
    except ImportError:  # an agent may run on a Python without pynvml
        return _by_nvidia_smi(environ)
    except Exception:  # it is too old, or does not match the driver
        return None
    try:
        any_mig = any(divided for *_, divided in driver.devices)
        return [("" if any_mig else index, uuid, driver.name(device)) for index, uuid, device, _ in driver.devices]
    except Exception:
        return None
    finally:
        driver.close()


def open_driver() -> Driver | None:
    """Ask the driver, and stay connected to it; ``None`` if it does not answer, or knows no GPU."""
    try:
        driver = Driver()
    except Exception:
        return None
    return driver if driver.devices else None


def smallest_memory(ids: Collection[str]) -> int | None:
    """Memory in bytes of the smallest of these GPUs; ``None`` if the size of one is not known.

    Args:
        ids: indices or UUIDs, possibly shortened. For a GPU in MIG mode, its smallest MIG device counts.
    """
    try:
        driver = Driver()
        try:
            known = [(driver.size(device), index, uuid) for index, uuid, device, _ in driver.devices]
        finally:
            driver.close()
    except Exception:
        return None
    sizes = [[size for size, index, uuid in known if _is_meant(word, index, uuid)] for word in ids]
    return min(map(min, sizes)) if sizes and all(sizes) else None


def _is_meant(word: str, index: str, uuid: str) -> bool:
    return word == index or (word.startswith(("GPU-", "MIG-")) and uuid.startswith(word))


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
