"""Golden records: what the tuner does and says in simulated studies, so that its code can be rearranged without fear.

``driver.py`` is the only file that touches Bireme: it types commands, under a virtual clock, and plays the
``bireme run`` that the tuner starts. ``programs.py`` says what the tuned programs print; ``draw.py`` draws studies by a
seed; ``record.py`` writes down what happened; ``journals.py`` keeps folders of studies, and what is said of them.
``python -m tests.golden`` checks all records, and ``--write`` renews them.
"""
