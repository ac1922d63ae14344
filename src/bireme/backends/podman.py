"""``podman exec``: as ``docker exec``, whose command line it has."""

from __future__ import annotations

from bireme.backends.docker import Docker


class Podman(Docker):
    """podman."""

    NAME = "podman"
    PROGRAMS = ("podman",)


BACKEND = Podman()
