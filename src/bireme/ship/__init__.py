"""The tree of files that `--ship` sends: its manifest, its way to the nodes, and what the nodes make of it."""
