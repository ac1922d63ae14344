"""How much memory the devices of this machine have; asked by the tuner alone."""

from __future__ import annotations


def smallest() -> int | None:
    """Bytes of memory of the smallest NVIDIA GPU of this machine; None: there is none, or it does not say.

    Of GPUs in MIG mode, the smallest MIG device counts.
    """
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # pynvml is missing or too old, there is no driver, its library does not fit, ...
        return None
    try:
        return min(_sizes(nvml), default=None)
    except Exception:
        return None
    finally:
        nvml.nvmlShutdown()


def _sizes(nvml) -> list[int]:  # type: ignore[no-untyped-def]  # the module, which has no types
    sizes = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        parts = _parts(nvml, gpu)
        sizes += [int(nvml.nvmlDeviceGetMemoryInfo(part).total) for part in parts or [gpu]]
    return sizes


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
