"""One node's part of a job: its processes, pipes, terminals and log files; the examination before the start."""
