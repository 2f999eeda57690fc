"""Export manifest ``team.json``: contents and a digest for every file. It is checked before any other file is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from marft.common import atomic, user_modules
from marft.common.atomic import digest_of_file
from marft.common.errors import UserError
from marft.common.texts import join_names
from marft.common.user_modules import CODE_FOLDER, MANIFEST, MANIFEST_FORMAT
from marft.config.load import first_problem

RECIPE, CARD = "recipe.toml", "README.md"
SCHEMA = 1
# folders with all files listed in the manifest
FOLDERS = (CODE_FOLDER, "merged", "models", "policies", "skills", "templates")
COMPILED = (".pyc", ".pyo", ".pyd", ".so", ".dll", ".dylib", ".pth", ".egg", ".whl", ".zip")  # not source code
CODE_SUFFIXES = (*COMPILED, ".py", ".pyw")
AUTO_LOADED = (
    ".bin", ".pt", ".ckpt", ".pkl", ".pickle", ".joblib", ".safetensors", ".gguf", ".h5",
    ".msgpack", ".onnx", ".npy", ".npz", ".model", ".tiktoken", ".json", ".jinja", ".jinja2", "vocab.txt", "merges.txt",
)  # name endings of files that a library loads by itself from a model folder  # fmt: skip
METADATA = (".dist-info", ".egg-info")  # folders that make Python recognize installed packages


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Table):
    """File digest (SHA-256) and size in bytes."""

    sha256: str
    bytes: NonNegativeInt


class CheckpointEntry(_Table):
    """Checkpoint behind the exported weights."""

    name: str
    step: NonNegativeInt
    environment_steps: NonNegativeInt


class PolicyEntry(_Table):
    """Weights of a policy.

    Args:
        kind: a LoRA ``adapter``, full ``weights``, or the unchanged ``base``.
        path: folder in the export; "" for the base.
        merged: folder of the base with the adapter merged; "" if not requested.
    """

    kind: Literal["adapter", "weights", "base"]
    model: str
    path: str = ""
    merged: str = ""
    rank: NonNegativeInt = 0
    alpha: float = 0.0
    target_modules: tuple[str, ...] = ()


class ModelEntry(_Table):
    """Base model.

    Args:
        path: a Hugging Face ID, a folder in the export, or the name of a remote model at its endpoint.
        commit: commit of a Hugging Face ID.
        digest: digest of its weights, tokenizer and chat template; "" if MARFT never read them.
        template_options: variables for rendering its chat template, such as ``enable_thinking``.
        chat_template: a file in the export that replaces its chat template; "" for its own.
    """

    path: str
    commit: str = ""
    digest: str = ""
    endpoint: str = ""
    template_options: dict[str, object] = {}
    chat_template: str = ""


class Manifest(_Table):
    """Contents of ``team.json``."""

    format: Literal["a team of MARFT"]
    schema_version: Literal[1]
    marft: str  # MARFT version that wrote the export
    name: str
    made: str
    checkpoint: CheckpointEntry
    organization: dict[str, object]
    channel: dict[str, object]
    agents: tuple[dict[str, Any], ...]
    reorganized: dict[str, Any]  # changes since training: name, digest, organization, added, removed
    sees: dict[str, tuple[str, ...]]  # by role: agents that it saw in the last recorded episodes, for this team
    tools: dict[str, object]
    policies: dict[str, PolicyEntry]
    models: dict[str, ModelEntry]
    evaluations: tuple[dict[str, Any], ...]  # of this checkpoint and the untuned base
    training: dict[str, Any]
    paths: tuple[str, ...]  # keys of the recipe with paths in the export as values
    code: tuple[str, ...]  # user files that run together with the team
    requires: dict[str, str]  # packages that those files import, with their versions at export
    left_out: tuple[str, ...]
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class Export:
    """Export with verified files.

    Args:
        unlisted: files in its folder that are not in its manifest; they are never opened.
        digests: SHA-256 of each verified file, by name.
    """

    path: Path
    manifest: Manifest
    unlisted: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """Warning about files outside the manifest. The text is "" without such files."""
        if not self.unlisted:
            return ""
        return f"{self.path}: {join_names(self.unlisted)}: not in {MANIFEST}, and not opened"


def load_export(path: str | Path) -> Export:
    """Read an export and verify every file against its digest, except the model card.

    Other files, such as notes, may lie beside them. They are listed in the result and never opened. A file that Python
    or a library could load by itself is an error.

    Raises:
        UserError: the folder is not an export; or a file is missing, damaged, compiled, or unlisted and loadable. The
            message names it.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file():
        raise UserError(f"{path} is no export of a team: it has no {MANIFEST}. marft export RUN makes one")
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        _check_file(path, name, entry)
    if RECIPE not in manifest.files:
        raise UserError(f"{path}: {MANIFEST} lists no {RECIPE}")
    extra = _unlisted(path, manifest.files)
    for name in filter(_is_loaded, extra):
        raise UserError(f"{path}: {name} was not written with it; remove it")
    user_modules.verified_folders.add(path.resolve())
    hashes = {name: entry.sha256 for name, entry in manifest.files.items()}
    return Export(path, manifest, tuple(extra), hashes)


def write_manifest(folder: Path, table: Mapping[str, object]) -> Manifest:
    """Write and return the manifest for a folder's files, except the model card."""
    names = [name for name in list_files(folder) if name not in (MANIFEST, CARD)]
    files = {name: {"sha256": digest_of_file(folder / name), "bytes": (folder / name).stat().st_size} for name in names}
    manifest = {"format": MANIFEST_FORMAT, "schema_version": SCHEMA, **table, "files": files}
    checked = Manifest.model_validate(manifest)
    text = json.dumps({**manifest, "digest": atomic.digest_of_json(manifest)}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return checked


def list_files(folder: Path) -> list[str]:
    """Return the files of a folder by relative path."""
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of an export, without a check of the files in it.

    Raises:
        UserError: the manifest is damaged, or of another version.
    """
    location = f"{path}: {MANIFEST}"
    try:
        table = atomic.read_json(path / MANIFEST)
    except (OSError, ValueError) as error:
        raise UserError(f"{location} is damaged: {error}") from error
    if not isinstance(table, dict) or table.get("format") != MANIFEST_FORMAT:
        raise UserError(f"{location} is not one that MARFT writes")
    if table.get("schema_version") != SCHEMA:
        raise UserError(
            f"{location} is of schema {table.get('schema_version')!r}, and this version of MARFT reads {SCHEMA}; "
            "use the version that wrote it"
        )
    if table.pop("digest", None) != atomic.digest_of_json(table):
        raise UserError(f"{location} is damaged: it is not as it was written")
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        raise UserError(f"{location} holds what no export does: {first_problem(error)}") from None


def _check_file(path: Path, name: str, entry: FileEntry) -> None:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name:
        raise UserError(f"{path}: {MANIFEST} names {name!r}, which is no file of an export")
    if _is_compiled(name):
        raise UserError(f"{path}: {MANIFEST} lists {name}: an export brings code as source alone")
    file = path / name
    if not file.is_file():
        raise UserError(f"{path}: {name} is missing")
    size = file.stat().st_size
    if size != entry.bytes:
        raise UserError(f"{path}: {name} is damaged: it has {size:,} bytes of {entry.bytes:,}")
    if digest_of_file(file) != entry.sha256:
        raise UserError(f"{path}: {name} is damaged: it is not as it was written")


def list_unlisted(path: Path) -> list[str]:
    """Return the files in an export's folder that its manifest does not list.

    If the manifest is damaged, these are all files except the manifest itself.
    """
    try:
        listed = {MANIFEST, CARD, *atomic.read_json(path / MANIFEST)["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        listed = {MANIFEST}
    return [name for name in list_files(path) if name not in listed]


def _unlisted(path: Path, files: Mapping[str, FileEntry]) -> Sequence[str]:
    """Return the unlisted files in an export's folder; links are not followed.

    Raises:
        UserError: a folder in the export is a link.
    """
    unlisted = list[str]()
    for folder_path, folders, names in os.walk(path):
        parent = Path(folder_path)
        for folder in folders:
            if (parent / folder).is_symlink():
                name = (parent / folder).relative_to(path).as_posix()
                raise UserError(f"{path}: {name} is a link to another folder; put a copy of that in its place")
        unlisted += [(parent / name).relative_to(path).as_posix() for name in names]
    return sorted(name for name in unlisted if name not in {*files, MANIFEST, CARD})


def _is_compiled(name: str) -> bool:
    """Return True if a file holds compiled or packed code, by its name.

    >>> [_is_compiled(name) for name in ("code/a.py", "code/a.PYC", "code/a.so.1", "code/__pycache__/a", "code/a.sock")]
    [False, True, True, True, False]
    """
    path = PurePosixPath(name.lower())
    return name.lower().endswith(COMPILED) or ".so." in path.name or "__pycache__" in path.parts


def _is_loaded(name: str) -> bool:
    """Return True if Python or a library could load an unlisted file by itself, by its name."""
    parts = PurePosixPath(name.lower()).parts
    inside = any(part.endswith(METADATA) for part in parts[:-1])
    code = _is_compiled(name) or parts[-1].endswith(CODE_SUFFIXES)
    return inside or parts[0] in FOLDERS or code or (len(parts) == 1 and parts[-1].endswith(AUTO_LOADED))
