"""One node's part of a job: the session, the ranks and their pipes, and the agent that a runner drives."""
