"""Process control: the guardian and the watcher, the stop ladder, control groups, and what the kernel offers."""
