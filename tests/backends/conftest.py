"""Makes the cluster fixtures of ``tests/cluster`` available here."""

from tests.cluster.conftest import _ssh_cluster, shared_dir, ssh_cluster, tool

__all__ = ["_ssh_cluster", "shared_dir", "ssh_cluster", "tool"]
