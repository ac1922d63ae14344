"""The study: which trial is next, and what is certain. Pure."""
