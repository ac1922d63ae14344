"""DeepSpeed as one program among those that can be tuned: its configuration, its files, its memory.

What the engine reads and writes is the contract of ``deepspeed.autotuning``; only that is kept, not
its way of finding the best.
"""
