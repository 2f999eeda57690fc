"""Putting a mutant into a running process: into functions that are there already, or into a module when it is imported.

No file is written. A function's code is exchanged where the function stands, so that whoever holds it runs the mutant;
what runs once, when a module is imported, needs a process in which it has not been.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType

from mutation import Mutant

Place = tuple[str, str, int]  # file, qualified name, first line


class Functions:
    """The functions of this process that come from some files, as they are now."""

    def __init__(self, files: Sequence[str]) -> None:
        wanted = set(files)
        self.found: defaultdict[Place, list[FunctionType]] = defaultdict(list)
        gc.unfreeze()  # what is frozen is not among the objects
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename in wanted:
                self.found[_place(thing.__code__)].append(thing)

    def plant(self, mutant: Mutant) -> bool:
        """Exchange the code of the mutant's function; False where there is no such function to exchange it in."""
        whole = compile(mutant.tree(), str(mutant.source.path), "exec", dont_inherit=True)
        planted = False
        for code in _codes(whole):
            for function in self.found[_place(code)] if code.co_qualname == mutant.function else ():
                if function.__code__.co_freevars != code.co_freevars:
                    return False
                function.__code__ = code
                planted = True
        return planted


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class Planted(importlib.abc.MetaPathFinder):
    """Imports the mutant's module with the fault in it, and every other as it is.

    pytest looks for a module of a package in the folder that the package is in, where no finder would see it.
    """

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self.mutant.source.path
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        found = spec is not None and spec.origin == str(file)
        if not found and not ("." in fullname and str(file.with_suffix("")).endswith("/" + fullname.replace(".", "/"))):
            return None
        loader = _Loader(fullname, str(file))
        loader.mutant = self.mutant
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(self.mutant.tree(), self.path, "exec", dont_inherit=True)


def plant_on_import(mutant: Mutant) -> None:
    sys.meta_path.insert(0, Planted(mutant))


def come_first() -> None:
    """Look for modules before pytest does, which reads those with examples itself and puts its finder before others."""
    sys.meta_path.sort(key=lambda finder: not isinstance(finder, Planted))
