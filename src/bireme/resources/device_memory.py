"""Finds how much memory this machine's NVIDIA GPUs have, and how much of it is used, for the tuner."""

from __future__ import annotations

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any


def smallest(ids: Collection[str]) -> int | None:
    """Memory in bytes of the smallest of these NVIDIA GPUs; ``None`` if the size of one is not known.

    Args:
        ids: indices or UUIDs, possibly shortened. For a GPU in MIG mode, its smallest MIG device counts.
    """
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # pynvml or the driver is missing, or their versions do not match
        return None
    try:
        devices = _devices(nvml)
    except Exception:
        return None
    finally:
        nvml.nvmlShutdown()
    sizes = [[size for index, uuid, size in devices if _is_meant(word, index, uuid)] for word in ids]
    return min(map(min, sizes)) if sizes and all(sizes) else None


def _is_meant(word: str, index: str, uuid: str) -> bool:
    return word == index or (word.startswith(("GPU-", "MIG-")) and uuid.startswith(word))


def _devices(nvml) -> list[tuple[str, str, int]]:  # type: ignore[no-untyped-def]  # the module pynvml has no types
    """(index of the GPU, UUID, bytes) of every device."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        for device in _parts(nvml, gpu) or [gpu]:
            size = int(nvml.nvmlDeviceGetMemoryInfo(device).total)
            found.append((str(index), str(nvml.nvmlDeviceGetUUID(device)), size))
    return found


def _parts(nvml, gpu) -> list[object]:  # type: ignore[no-untyped-def]
    """The MIG devices of a GPU; none if it is not in MIG mode."""
    try:
        if nvml.nvmlDeviceGetMigMode(gpu)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
    except nvml.NVMLError:  # the GPU or the driver does not support MIG
        return []
    parts = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
        except nvml.NVMLError:  # no MIG device was created at this index
            continue
    return parts


class DeviceUse(Value):
    """How much memory of a device is used, in bytes; ``by_process``: by pid, as far as the driver knows."""

    index: str
    uuid: str
    used: int
    by_process: Mapping[int, int]

    def is_meant(self, word: str) -> bool:
        """Whether an index or a UUID, possibly shortened, means this device."""
        return _is_meant(word, self.index, self.uuid)


class GpuMemory:
    """The memory of this machine's NVIDIA GPUs, while they are used. Made by `open`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._devices: list[tuple[str, str, object]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            for device in _parts(nvml, gpu) or [gpu]:
                self._devices.append((str(index), str(nvml.nvmlDeviceGetUUID(device)), device))

    @staticmethod
    def open() -> GpuMemory | None:
        """Ask the driver, and stay connected to it; ``None`` if it does not answer, or knows no GPU."""
        try:
            import pynvml as nvml

            nvml.nvmlInit()
            found = GpuMemory(nvml)
        except Exception:  # pynvml or the driver is missing, or their versions do not match
            return None
        return found if found._devices else None

    def use(self) -> list[DeviceUse]:
        """What is used of each device now; a device that does not answer is left out."""
        found = []
        for index, uuid, device in self._devices:
            try:
                used = int(self._nvml.nvmlDeviceGetMemoryInfo(device).used)
            except Exception:
                continue
            found.append(DeviceUse(index, uuid, used, self._by_process(device)))
        return found

    def _by_process(self, device: object) -> dict[int, int]:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        except Exception:  # an old driver
            return {}
        return {int(each.pid): int(each.usedGpuMemory) for each in running if each.usedGpuMemory is not None}
