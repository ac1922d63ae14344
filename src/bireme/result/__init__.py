"""The result of a job: ends of ranks, the verdict, the outcome, the report."""
