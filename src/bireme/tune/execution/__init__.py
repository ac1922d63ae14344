"""Runs trials on the slots of the pool."""
