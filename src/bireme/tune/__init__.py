"""The tuner: searches, schedules and runs experiments, and records their results."""
