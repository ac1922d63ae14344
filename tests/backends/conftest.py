"""The clusters of ``tests/cluster``, here too."""

from tests.cluster.conftest import _ssh_cluster, shared_dir, ssh_cluster, tool

__all__ = ["_ssh_cluster", "shared_dir", "ssh_cluster", "tool"]
