"""A deterministic simulation of the distributed part: the real runner and agents, on a clock and network of its own.

``python -m tests.simulation`` runs it. Real are the runner's session, crew, bootstrap, heartbeat, launcher processes
and verdict, the elastic job with its roster and monitor, and the agents with their channels and stop ladder. Simulated
are the clock, the network, and the processes below them: guardians, watchers, ranks, ssh. A seed decides everything.
"""
