"""Warm starts: ranks that are forked from a Python that has imported their modules already."""
