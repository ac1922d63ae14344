"""The next point of a search."""
