"""What a trial has measured: numbers, files, memory."""
