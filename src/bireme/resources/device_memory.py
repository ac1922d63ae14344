"""Finds the memory size of this machine's NVIDIA GPUs, for the tuner."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


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
