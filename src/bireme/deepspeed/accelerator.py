"""The part of ``deepspeed.accelerator`` that a launcher needs: the devices of this machine, without PyTorch."""

from __future__ import annotations

import os

from bireme.job import ACCELERATORS
from bireme.resources import devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Accelerator", "get_accelerator"]


class Accelerator:
    """The accelerator of this machine, under DeepSpeed's names."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        asked = environ.get("DS_ACCELERATOR", "auto")
        self._devices = devices.discover(asked if asked in ACCELERATORS else "auto", environ)

    def device_name(self, device_index: int | None = None) -> str:
        """``cuda`` or ``cuda:0``; AMD GPUs are called ``cuda`` too, as in PyTorch."""
        kind = self._devices.accelerator
        name = "cuda" if kind == "rocm" else kind
        return name if device_index is None else f"{name}:{device_index}"

    def device_count(self) -> int:
        """The number of devices, including those hidden by the environment; on a CPU, the number of usable cores."""
        return len(self._devices.ids)

    def is_available(self) -> bool:
        """Whether there is a device to run on; always true on a CPU."""
        return bool(self._devices.ids)

    def visible_devices_envs(self) -> list[str]:
        """The environment variables that restrict which devices a process sees; none on a CPU."""
        return list(devices.visible_variables(self._devices.accelerator))


def get_accelerator() -> Accelerator:
    """The accelerator of this machine: ``DS_ACCELERATOR``, or the first kind found.

    Raises:
        ValueError: ``DS_ACCELERATOR`` names an accelerator that this machine does not have.
    """
    return Accelerator(os.environ)
