"""The study: which trial is next, when and why it ends (`study.py`), and what is certain. Pure."""
