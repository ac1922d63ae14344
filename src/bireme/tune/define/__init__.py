"""What the user has written: parameters, goals, study files."""
