"""Imports modules that the runner has sent, from memory. The first code of an agent on its node.

The command line of the agent carries the source of this file. It imports nothing of this package, which need not be
installed on the node.
"""

from __future__ import annotations

import marshal
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class SentModules:
    """A finder and loader for ``sys.meta_path``.

    Args:
        modules: each module by its full name: its source, or its code as `marshal` writes it. The packages that
            contain them are empty.
    """

    def __init__(self, modules: Mapping[str, str | bytes]) -> None:
        self._modules: dict[str, str | bytes] = {}
        self._packages: set[str] = set()
        self._add(modules)
        sys.meta_path.insert(0, self)

    def _add(self, modules: Mapping[str, str | bytes]) -> None:
        self._modules.update(modules)
        for name in modules:
            while name := name.rpartition(".")[0]:
                self._packages.add(name)

    def add(self, sent: bytes) -> None:
        """Add modules as the runner packs them (:mod:`bireme.agent.sent_code`)."""
        self._add(marshal.loads(zlib.decompress(sent)))

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find a module; ``None`` leaves it to the other finders."""
        if name not in self._modules and name not in self._packages:
            return None
        make: type[ModuleSpec] = type(sys.__spec__)
        return make(name, self, origin=f"sent:{name}", is_package=name in self._packages)  # type: ignore[arg-type]

    def get_source(self, name: str) -> str | None:
        """The source of a module that was sent as source."""
        body = self._modules[name]
        return body if isinstance(body, str) else None

    def create_module(self, _: ModuleSpec) -> None:
        """Leave making the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module."""
        body = self._modules.get(module.__name__, "")
        if isinstance(body, str):
            code = compile(body, f"sent:{module.__name__}", "exec", dont_inherit=True)
        else:
            code = marshal.loads(body)
        exec(code, module.__dict__)
