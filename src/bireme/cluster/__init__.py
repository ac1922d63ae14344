"""A job on many nodes: starts agents, checks the nodes, starts the ranks, and watches the agents."""
