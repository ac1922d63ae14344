"""What a job has come to: ends of ranks, verdict, outcome, report."""
