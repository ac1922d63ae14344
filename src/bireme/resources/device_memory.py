"""How much memory devices of this machine have; asked by the tuner alone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


def smallest(ids: Collection[str]) -> int | None:
    """Bytes of memory of the smallest of some NVIDIA GPUs of this machine; None: one of them is not known.

    Args:
        ids: indices or UUIDs, which may be shortened. Of a GPU in MIG mode, the smallest MIG device counts.
    """
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # pynvml is missing or too old, there is no driver, its library does not fit, ...
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


def _devices(nvml) -> list[tuple[str, str, int]]:  # type: ignore[no-untyped-def]  # the module, which has no types
    """(index of the GPU, UUID, bytes) of every device."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        for device in _parts(nvml, gpu) or [gpu]:
            size = int(nvml.nvmlDeviceGetMemoryInfo(device).total)
            found.append((str(index), str(nvml.nvmlDeviceGetUUID(device)), size))
    return found


def _parts(nvml, gpu) -> list[object]:  # type: ignore[no-untyped-def]
    """The MIG devices of a GPU; none where it is not in MIG mode."""
    try:
        if nvml.nvmlDeviceGetMigMode(gpu)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
    except nvml.NVMLError:  # a model, or a driver, that knows nothing of MIG
        return []
    parts = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
        except nvml.NVMLError:  # nothing was made in this place
            continue
    return parts
