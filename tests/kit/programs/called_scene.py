"""A program that has ranks play a scene: ``called_scene.py HOW RANKS GRACE PART [GO]``; it ends as the scene does."""

import sys

import scene

import bireme

how, ranks, grace, *words = sys.argv[1:]
fields = {"num_gpus": int(ranks), "accelerator": "cpu", "grace": float(grace), "save_pid": True}
try:
    if how == "launch":
        bireme.launch(scene.play, *words, **fields)
    elif how == "start":
        with bireme.start(scene.__file__, *words, **fields) as job:
            raise bireme.JobError(job.wait())
    else:
        with bireme.Executor(**fields) as pool:
            pool.launch(scene.play, *words)
except bireme.JobError as error:
    print(error, file=sys.stderr)
    sys.exit(error.outcome.exit_code)
except bireme.BiremeError as error:  # the process of the job was killed
    print(error, file=sys.stderr)
    sys.exit(75)
