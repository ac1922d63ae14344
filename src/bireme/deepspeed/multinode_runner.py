"""The public names of ``deepspeed.launcher.multinode_runner``: classes that build stand-alone command lines.

``bireme run`` does not use them, since it keeps a channel to every node. They are for programs that build a command
line for a job on many nodes and run it themselves. There are two kinds:

=====================================  ==================================================================
``PDSHRunner``, ``SSHRunner``          one agent on each node (``python -m bireme.agent``), which starts and
                                       supervises that node's ranks
``OpenMPIRunner``, ``MPICHRunner``,    ``mpirun`` or ``srun`` starts every rank itself; what DeepSpeed's
``IMPIRunner``, ``SlurmRunner``,       class cannot do, such as filtering slots, this one refuses too
``MVAPICHRunner``
=====================================  ==================================================================

A command never contains values of exported variables. They are put into the ``environment`` passed to ``get_cmd``, in
which the caller has to run the command (as DeepSpeed does). pdsh and ssh pass them to the nodes in
``LC_BIREME_EXPORTS``, since servers accept variables named ``LC_*`` by default; a server that does not is detected at
the start.
"""

from __future__ import annotations

from bireme.deepspeed.agent_runners import PDSHRunner, SSHRunner
from bireme.deepspeed.base_runner import MultiNodeRunner
from bireme.deepspeed.native_runners import IMPIRunner, MPICHRunner, MVAPICHRunner, OpenMPIRunner, SlurmRunner

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
