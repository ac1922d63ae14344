"""Output: lines, labels, console, live rows, log files, back-pressure."""
