"""The names of ``deepspeed.launcher.multinode_runner``: command lines that run a job on many nodes by themselves.

``bireme run`` does not use them: what it starts has a channel to every node. They are for programs that ask for a
command line and run it on their own account. There are two kinds:

=====================================  ==================================================================
``PDSHRunner``, ``SSHRunner``          one agent on each node (``python -m bireme.agent``), which starts and
                                       supervises that node's ranks
``OpenMPIRunner``, ``MPICHRunner``,    the engine starts every rank itself; what DeepSpeed's class
``IMPIRunner``, ``SlurmRunner``,       cannot do, such as filters down to slots, this one refuses, too
``MVAPICHRunner``
=====================================  ==================================================================

Values of exported variables never stand in a command: they are put into the ``environment`` that ``get_cmd`` is given,
which has to be the one in which the command is run (as DeepSpeed does it). To the nodes of pdsh and ssh they go in
``LC_BIREME_EXPORTS``, since stock servers accept variables named ``LC_*``; one that does not is found at the start.
"""

from __future__ import annotations

from bireme.deepspeed.by_agent import PDSHRunner, SSHRunner
from bireme.deepspeed.by_engine import IMPIRunner, MPICHRunner, MVAPICHRunner, OpenMPIRunner, SlurmRunner
from bireme.deepspeed.by_itself import MultiNodeRunner

__all__ = [
    "IMPIRunner",
    "MPICHRunner",
    "MVAPICHRunner",
    "MultiNodeRunner",
    "OpenMPIRunner",
    "PDSHRunner",
    "SSHRunner",
    "SlurmRunner",
]
