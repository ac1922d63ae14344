"""The command's side of a running job, wherever the ranks run: the session, its signals, our stdin."""
