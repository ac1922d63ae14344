"""Elastic training: epochs, the roster of nodes, the membership monitor with its node probes, the control socket."""
