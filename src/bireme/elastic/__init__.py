"""Elastic training: who takes part, who is looked for, how often the job may be started again. Pure."""
