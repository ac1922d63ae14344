"""Tuning of any program: how a point reaches it, what a trial is, and the files and words of a study."""
