"""The base class of all runners that build a stand-alone command line for a job on many nodes."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from shlex import split
from shutil import which

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, MutableMapping
    from typing import Any, ClassVar, TypeAlias

    Environment: TypeAlias = MutableMapping[str, str]
    Resources: TypeAlias = Mapping[str, Any]


class MultiNodeRunner(ABC):
    """Builds the command line that runs a job on many nodes.

    Attributes:
        args: the command line, as :func:`bireme.deepspeed.runner.parse_args` gives it.
        user_arguments: the script's arguments, as the command contains them.
        user_script: the script.
        world_info_base64: host → slots, encoded.
        exports: name → value of exported variables, in double quotes where a shell needs them.
    """

    _NAME: ClassVar[str] = ""
    _PROGRAM: ClassVar[str] = ""

    def __init__(self, args: Namespace, world_info_base64: str) -> None:
        self.args = args
        self.validate_args()
        self.user_arguments = self.parse_user_args()
        self.user_script: str = args.user_script
        self.world_info_base64 = world_info_base64
        self.exports: dict[str, str] = {}

    def backend_exists(self) -> object:
        """Whether the program that the command needs is installed: its path or another true value."""
        return which(self._PROGRAM)

    @abstractmethod
    def get_cmd(self, environment: Environment, active_resources: Resources) -> Any:
        """Return the command, which has to be run in ``environment``; completes the environment.

        Args:
            environment: what the command inherits.
            active_resources: host → slots, in the order of the nodes.
        """

    def add_export(self, key: str, var: str) -> None:
        """Export a variable to all ranks."""
        var = var.strip()
        self.exports[key.strip()] = f'"{var}"' if re.search(r"[^\w@%+=:,./-]", var) else var

    def parse_user_args(self) -> list[str]:
        """The script's arguments in the form that the command needs."""
        return list(self.args.user_args)

    @property
    def name(self) -> str:
        """The backend's name, as ``--launcher`` has it."""
        return self._NAME or type(self).__name__

    def validate_args(self) -> None:  # noqa: B027
        """Refuse what this backend cannot do.

        Raises:
            ValueError: the arguments ask for something that it cannot do.
        """

    @classmethod  # noqa: B027
    def validate_active_resources(cls, active_resources: Resources) -> None:
        """Refuse slots that this backend cannot choose.

        Raises:
            ValueError: such slots are chosen.
        """

    def _values(self) -> dict[str, str]:
        """The exports without the quotes that :meth:`add_export` added."""
        return {name: value[1:-1] if value.startswith('"') else value for name, value in self.exports.items()}

    def _launcher_args(self) -> list[str]:
        return split(self.args.launcher_args)

    def _program(self) -> list[str]:
        """The command line of a rank."""
        python = [] if self.args.no_python else [sys.executable, "-u", *(["-m"] if self.args.module else [])]
        return [*python, self.user_script, *self.user_arguments]
