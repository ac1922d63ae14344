"""Decides where a job runs, runs it on this machine, and restarts it."""
