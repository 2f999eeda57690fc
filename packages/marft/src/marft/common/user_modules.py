"""User modules loaded by file: modules named in a recipe, and their imports from the same folder.

No folder of a recipe, an export or the command goes on ``sys.path``. An optional import of a library (``import brotli``
in an HTTP client) therefore cannot resolve there. A folder serves only the import paths of recipes, and the imports of
modules that were loaded from it. Modules are compiled from source; bytecode is neither read nor written.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType

from marft.common.atomic import digest_of_file
from marft.common.errors import UserError
from marft.common.log import get_logger

logger = get_logger(__name__)
PROJECT_FILE, SOURCE_FOLDER = "pyproject.toml", "src"  # marks of a project with a src layout
# layout of an export: manifest, its format, and the folder of the modules
MANIFEST, MANIFEST_FORMAT, CODE_FOLDER = "team.json", "a team of MARFT", "code"
# Standard library modules that import names given by their caller: such imports count as the caller's.
IMPORTING_MODULES = (
    "contextlib",
    "functools",
    "importlib",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
    "importlib.util",
    "logging.config",
    "pkgutil",
    "pydoc",
    "runpy",
    "unittest.mock",
)
RESOURCES_PACKAGE = "importlib.resources"  # a package of such modules
# Standard library packages that call a function whose caller has left the stack, or runs in another process.
DETACHED_PACKAGES = ("asyncio", "concurrent", "multiprocessing", "pickle", "threading")


@dataclass(frozen=True)
class ModuleRoot:
    """Search location for user modules.

    Args:
        folders: folders to search, in this order.
        digests: for an export: SHA-256 of each file that may be loaded, by path; None: any file may be loaded.
    """

    folders: tuple[Path, ...]
    digests: Mapping[str, str] | None = None

    def make_spec(self, name: str) -> ModuleSpec | None:
        """Return the import spec for a full module name; None if not found."""
        places = [folder.joinpath(*name.split(".")) for folder in self.folders]
        files = [file for place in places for file in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
        file = next(filter(self._has_file, files), None)
        inside = [str(place) for place in places if self._has_folder(place)]
        if file is not None:
            package = [str(file.parent)] if file.stem == "__init__" else None
            loader = SourceLoader(name, str(file), self)
            spec = spec_from_file_location(name, file, loader=loader, submodule_search_locations=package)
            assert spec is not None
        elif inside:  # a namespace package
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = inside
        else:
            return None
        spec.loader_state = self
        return spec

    def verify(self, file: str, data: bytes) -> None:
        """Compare a source file with the digest in its export.

        Raises:
            ImportError: the digests differ, or the export has none for the file.
        """
        if self.digests is not None and self.digests.get(file) != hashlib.sha256(data).hexdigest():
            raise ImportError(f"{file} has changed since its export was checked, and is not run", path=file)

    def _has_file(self, file: Path) -> bool:
        return file.is_file() if self.digests is None else str(file) in self.digests

    def _has_folder(self, place: Path) -> bool:
        if self.digests is None:
            return place.is_dir()
        return any(Path(file).is_relative_to(place) for file in self.digests)


class SourceLoader(SourceFileLoader):
    """Loader that compiles a user module from source."""

    def __init__(self, name: str, path: str, root: ModuleRoot) -> None:
        super().__init__(name, path)
        self.root = root

    def get_data(self, path: str) -> bytes:
        """Read a source file, and check the exact bytes that will be compiled.

        Raises:
            ImportError: the bytes differ from those that were checked with the export.
        """
        data = super().get_data(path)
        self.root.verify(str(path), data)
        return data

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source and ignore bytecode next to it."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


_roots: list[ModuleRoot] = []  # roots of the recipes read by this process, latest first
# roots for the module being imported by name
_active_roots: ContextVar[Sequence[ModuleRoot]] = ContextVar("_searched", default=())
_sent_warnings: set[str] = set()
verified_folders: set[Path] = set()  # exports, and folders of exports, whose files were checked in this process


class _SubmoduleFinder(MetaPathFinder):
    """Finder for submodules inside packages from a root. Comes first, because other finders read bytecode."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the import spec for a submodule; None if its package was not loaded from a root.

        Raises:
            ModuleNotFoundError: the export does not list the module.
        """
        parent = sys.modules.get(fullname.rpartition(".")[0]) if path is not None else None
        root = getattr(getattr(parent, "__spec__", None), "loader_state", None)
        if not isinstance(root, ModuleRoot):
            return None
        spec = root.make_spec(fullname)
        if spec is None and root.digests is not None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return spec


class _RecipeFolderFinder(MetaPathFinder):
    """Finder for import paths in recipes, and for imports by modules from a root. Installed modules take precedence."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Search the roots of the importing module.

        Raises:
            ModuleNotFoundError: the importing module is unknown, and the module may be next to a recipe.
        """
        caller = _importing_frame(sys._getframe(1)) if path is None else None
        roots = _visible_roots(caller) if caller is not None else ()
        specs = [spec for root in roots if (spec := root.make_spec(fullname))]
        namespace = next(iter(specs), None)  # a folder without __init__.py must not hide a package
        spec = next((spec for spec in specs if spec.loader), namespace)
        if spec is None and caller is not None and not _is_spec_lookup(sys._getframe(1)):
            _reject_detached(fullname, caller)
        return spec


def _importing_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame with the import, skipping import functions of the standard library; None if not found."""
    while frame is not None and frame.f_code is not import_user_module.__code__ and _imports_for_caller(frame):
        frame = frame.f_back
    return frame


def _imports_for_caller(frame: FrameType) -> bool:
    """Return True if a frame imports a name given by its caller."""
    name = str(frame.f_globals.get("__name__"))
    if _patched_function(frame) is not None:
        return False
    return (
        name in (*IMPORTING_MODULES, __name__) or name == RESOURCES_PACKAGE or name.startswith(f"{RESOURCES_PACKAGE}.")
    )


def _patched_function(frame: FrameType) -> FunctionType | None:
    """Return the function that a ``unittest.mock`` decorator is about to call in a frame; None for all other frames."""
    if frame.f_globals.get("__name__") != "unittest.mock" or frame.f_code.co_name not in ("patched", "_inner"):
        return None
    function = frame.f_locals.get("func", frame.f_locals.get("f"))
    return function if isinstance(function, FunctionType) else None


def _visible_roots(caller: FrameType) -> Sequence[ModuleRoot]:
    """Return the roots visible to the importing code."""
    if caller.f_code is import_user_module.__code__:
        return _active_roots.get()
    function = _patched_function(caller)
    loader = (caller.f_globals if function is None else function.__globals__).get("__loader__")
    return (loader.root,) if isinstance(loader, SourceLoader) else ()


def _is_spec_lookup(frame: FrameType) -> bool:
    """Return True during ``importlib.util.find_spec``, where a missing module is no error."""
    while frame.f_back is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        frame = frame.f_back
    return frame.f_globals.get("__name__") == "importlib.util"


def _reject_detached(name: str, caller: FrameType) -> None:
    """Reject the import of a module next to a recipe by an unknown caller.

    Raises:
        ModuleNotFoundError: the import comes from a thread, an event loop or a child process.
    """
    package = str(caller.f_globals.get("__name__")).partition(".")[0]
    if package not in DETACHED_PACKAGES:
        return
    missing = f"No module named {name!r}"
    if any(root.make_spec(name) for root in _roots):
        raise ModuleNotFoundError(
            f"{missing}: it lies beside a recipe, where modules of that folder alone may import it, and this import "
            "was handed to a thread or an event loop; hand over a function of your module that imports it",
            name=name,
        )
    if package == "multiprocessing":
        raise ModuleNotFoundError(
            f"{missing}: a process that multiprocessing starts finds no modules beside a recipe; install the module "
            "(pip install -e .), or start processes with multiprocessing.get_context('fork')",
            name=name,
        )


def add_root(root: ModuleRoot) -> None:
    """Register a root for import paths, before all roots registered earlier."""
    _roots[:] = [root, *(other for other in _roots if other.folders != root.folders)]


def add_folder(folder: Path) -> None:
    """Register a recipe's folder, and for a project also its ``src`` folder.

    In an export, only the files of its ``code`` folder that the manifest lists can be found.
    """
    if not any(root.digests is not None and folder in root.folders for root in _roots):
        add_root(_folder_root(folder))


def export_root(export: Path, folder: Path, hashes: Mapping[str, str]) -> ModuleRoot:
    """Return the root for an export's modules.

    Args:
        export: folder of the export.
        folder: folder of its modules.
        hashes: SHA-256 of each file in the export, by its name in the export.
    """
    return ModuleRoot(
        (folder,), {str(export / name): digest for name, digest in hashes.items() if name.startswith(f"{CODE_FOLDER}/")}
    )


def enclosing_export(folder: Path) -> Path | None:
    """Return the exported team's folder that contains this folder, or is it; None outside exports."""
    return next(filter(is_export, (folder, *folder.parents)), None)


def is_export(folder: Path) -> bool:
    """Return True if a folder has the manifest of an export."""
    return _read_manifest(folder) is not None


def verify_export_folder(folder: Path) -> None:
    """Verify a folder inside an export before a library loads models or adapters from it.

    Each folder is checked once per process. Folders outside exports are not checked.

    Raises:
        UserError: a file is not listed in the manifest, or has changed.
    """
    folder = folder.resolve()
    export = enclosing_export(folder)
    if export is None or not verified_folders.isdisjoint((folder, *folder.parents)):
        return
    listed = _read_digests(export)
    for file in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        name = file.relative_to(export).as_posix()
        if name not in listed:
            raise UserError(f"{export}: {name} was not written with it; remove it")
        if not file.is_file() or digest_of_file(file) != listed[name]:
            raise UserError(f"{export}: {name} is damaged: it is not as it was written")
    verified_folders.add(folder)


def subprocess_env(folder: str) -> dict[str, str]:
    """Return environment variables for a program with this working folder: no bytecode in exports."""
    return {"PYTHONDONTWRITEBYTECODE": "1"} if folder and enclosing_export(Path(folder)) else {}


def warn_once(text: str) -> None:
    """Log a warning, once per text; nothing for ""."""
    if text and text not in _sent_warnings:
        _sent_warnings.add(text)
        logger.warning(text)


def import_user_module(module: str, folder: str = "") -> ModuleType:
    """Import a module by import path: an installed module, else the working folder's, else one next to a recipe.

    Args:
        folder: folder of the recipe with the import path; "": any recipe.

    Raises:
        ImportError: the module is missing or cannot be loaded.
    """
    _install_finders()
    new = module not in sys.modules
    token = _active_roots.set(_search_roots(module.partition(".")[0], folder))
    try:
        imported = importlib.import_module(module)
    finally:
        _active_roots.reset(token)
    if new and isinstance(getattr(imported, "__loader__", None), SourceLoader):
        logger.info(f"runs {imported.__file__}")
    return imported


def _install_finders() -> None:
    for finder, place in ((_SUBMODULE_FINDER, 0), (_RECIPE_FOLDER_FINDER, len(sys.meta_path) + 1)):
        if finder not in sys.meta_path:
            sys.meta_path.insert(place, finder)


def _search_roots(name: str, folder: str) -> Sequence[ModuleRoot]:
    """Return the roots to search for a module. The working folder never overrides modules listed in an export."""
    roots = [root for root in _roots if not folder or Path(folder) in root.folders]
    working_folder = Path.cwd()
    if enclosing_export(working_folder) or any(root.digests is not None and root.make_spec(name) for root in roots):
        return roots
    return [_folder_root(working_folder), *roots]


def _folder_root(folder: Path) -> ModuleRoot:
    export = enclosing_export(folder)
    if export is not None:
        return export_root(export, folder, _read_digests(export))
    project = (folder / SOURCE_FOLDER).is_dir() and (folder / PROJECT_FILE).is_file()
    return ModuleRoot((folder, folder / SOURCE_FOLDER) if project else (folder,))


def _read_digests(export: Path) -> dict[str, str]:
    files = (_read_manifest(export) or {}).get("files")
    listed = files if isinstance(files, dict) else {}
    return {name: str(entry.get("sha256")) for name, entry in listed.items() if isinstance(entry, dict)}


def _read_manifest(folder: Path) -> dict[str, object] | None:
    """Return an export's manifest; None for other folders."""
    try:
        table = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) and table.get("format") == MANIFEST_FORMAT else None


_SUBMODULE_FINDER, _RECIPE_FOLDER_FINDER = _SubmoduleFinder(), _RecipeFolderFinder()
_install_finders()  # also in child processes of user modules, for the error messages
