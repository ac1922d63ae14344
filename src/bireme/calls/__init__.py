"""Functions on ranks, and jobs as objects: what `bireme.launch`, `bireme.start` and `bireme.Executor` do."""
