"""The public names of the ``deepspeed`` launcher and of its tuner's scheduler, under the same module names.

``from deepspeed.launcher.runner import X`` ports to ``from bireme.deepspeed.runner import X``, and likewise
``launch``, ``multinode_runner``, ``launcher_helper`` and ``constants``; ``deepspeed.autotuning.scheduler`` is
``bireme.deepspeed.scheduler``. Of ``deepspeed.accelerator`` there is the part that a launcher needs. This is a thin
adapter: integer slots, ``argparse.Namespace``, ``ValueError`` for bad input.
"""
