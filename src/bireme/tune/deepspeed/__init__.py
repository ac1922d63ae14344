"""Tuning of DeepSpeed scripts: their configuration, their files, their memory.

Files and configuration keys are those of ``deepspeed.autotuning``; the search for the best configuration is our own.
"""
