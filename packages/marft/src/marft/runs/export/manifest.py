"""``team.json``: what an export holds, and a digest of every file of it. Read before anything else is."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from marft.common import atomic, user_modules
from marft.common.user_modules import CODE, FORMAT, TEAM
from marft.config.load import first_problem

RECIPE, CARD = "recipe.toml", "README.md"
SCHEMA = 1
HELD = (CODE, "merged", "models", "policies", "skills", "templates")  # folders in which every file is listed
COMPILED = (".pyc", ".pyo", ".pyd", ".so", ".dll", ".dylib", ".pth", ".egg", ".whl", ".zip")  # no source
CODE_ENDS = (*COMPILED, ".py", ".pyw")
LOADED = (
    ".bin", ".pt", ".ckpt", ".pkl", ".pickle", ".joblib", ".safetensors", ".gguf", ".h5",
    ".msgpack", ".onnx", ".npy", ".npz", ".model", ".tiktoken", ".json", ".jinja", ".jinja2", "vocab.txt", "merges.txt",
)  # ends of names that a library looks for by itself in the folder of a model  # fmt: skip
METADATA = (".dist-info", ".egg-info")  # folders by which Python knows installed packages


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Table):
    sha256: str
    bytes: NonNegativeInt


class CheckpointEntry(_Table):
    """Which weights these are."""

    name: str
    step: NonNegativeInt
    environment_steps: NonNegativeInt


class PolicyEntry(_Table):
    """The weights of a policy.

    Args:
        kind: a LoRA ``adapter``, all ``weights``, or the ``base`` as it is.
        path: of its folder in the export; "" for the base.
        merged: folder of the base with the adapter in it; "" where it was not asked for.
    """

    kind: Literal["adapter", "weights", "base"]
    model: str
    path: str = ""
    merged: str = ""
    rank: NonNegativeInt = 0
    alpha: float = 0.0
    targets: tuple[str, ...] = ()


class ModelEntry(_Table):
    """A base.

    Args:
        path: a Hugging Face id; or a folder in the export; or, of a remote model, its name there.
        commit: of a Hugging Face id.
        digest: by which MARFT knows its weights, tokenizer and chat template; "" where it never read them.
        template_options: what its chat template is rendered with, ``enable_thinking`` for one.
        chat_template: a file in the export that takes the place of its own; "" for its own.
    """

    path: str
    commit: str = ""
    digest: str = ""
    endpoint: str = ""
    template_options: dict[str, Any] = {}
    chat_template: str = ""


class Manifest(_Table):
    """What an export says of itself."""

    format: Literal["a team of MARFT"]
    schema_version: Literal[1]
    marft: str  # the version that wrote it
    name: str
    made: str
    checkpoint: CheckpointEntry
    organization: dict[str, Any]
    channel: dict[str, Any]
    agents: tuple[dict[str, Any], ...]
    reorganized: dict[str, Any]  # name, digest, organization, added, removed: what is another than in training
    sees: dict[str, tuple[str, ...]]  # by role: whom it saw in the episodes that were recorded last, as this team
    tools: dict[str, Any]
    policies: dict[str, PolicyEntry]
    models: dict[str, ModelEntry]
    evaluations: tuple[dict[str, Any], ...]  # of this checkpoint and of the untuned base
    training: dict[str, Any]
    paths: tuple[str, ...]  # keys of the recipe whose values are paths in the export
    code: tuple[str, ...]  # files of the author's that are run when the team is
    requires: dict[str, str]  # packages that those import, and the versions that were there
    left_out: tuple[str, ...]
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class Export:
    """An export, every file of which is as it was written.

    Args:
        unlisted: files that lie in its folder and are not in its manifest. Nothing opens them.
        digests: SHA-256 of each file that was checked, by its name.
    """

    path: Path
    manifest: Manifest
    unlisted: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """Return a sentence about files that are not in the manifest; "" if there are none."""
        if not self.unlisted:
            return ""
        names, more = ", ".join(self.unlisted[:5]), f" and {len(self.unlisted) - 5} more" if self.unlisted[5:] else ""
        return f"{self.path}: {names}{more}: not in {TEAM}, and not opened"


def load_export(path: str | Path) -> Export:
    """Read an export, and check every file of it against its digest. The model card alone may be another one.

    Other files may lie beside them, such as notes: they are listed, and not opened. A file that Python or a library
    could load by itself may not.

    Raises:
        ValueError: it is none, or a file is missing, damaged, compiled, or was not written with it and could be loaded;
            the message names it.
    """
    path = Path(path)
    if not (path / TEAM).is_file():
        raise ValueError(f"{path} is no export of a team: it has no {TEAM}. marft export RUN makes one")
    manifest = _read(path)
    for name, entry in manifest.files.items():
        _check(path, name, entry)
    if RECIPE not in manifest.files:
        raise ValueError(f"{path}: {TEAM} lists no {RECIPE}")
    extra = _unlisted(path, manifest.files)
    for name in filter(_is_loaded, extra):
        raise ValueError(f"{path}: {name} was not written with it; remove it")
    user_modules.checked.add(path.resolve())
    digests = {name: entry.sha256 for name, entry in manifest.files.items()}
    return Export(path, manifest, tuple(extra), digests)


def write_manifest(folder: Path, table: Mapping[str, Any]) -> None:
    """Write the manifest of all files that lie in a folder, but for the model card."""
    names = [name for name in files_in(folder) if name not in (TEAM, CARD)]
    files = {name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size} for name in names}
    whole = {"format": FORMAT, "schema_version": SCHEMA, **table, "files": files}
    Manifest.model_validate(whole)
    text = json.dumps({**whole, "digest": _digest(whole)}, indent=2, ensure_ascii=False)
    (folder / TEAM).write_text(text + "\n", encoding="utf-8")


def files_in(folder: Path) -> list[str]:
    """The files of a folder by their names in it."""
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> Manifest:
    where = f"{path}: {TEAM}"
    try:
        table = atomic.read_json(path / TEAM)
    except (OSError, ValueError) as error:
        raise ValueError(f"{where} is damaged: {error}") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise ValueError(f"{where} is not one that MARFT writes")
    if table.get("schema_version") != SCHEMA:
        raise ValueError(
            f"{where} is of schema {table.get('schema_version')!r}, and this version of MARFT reads {SCHEMA}; "
            "use the version that wrote it"
        )
    if table.pop("digest", None) != _digest(table):
        raise ValueError(f"{where} is damaged: it is not as it was written")
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{where} holds what no export does: {first_problem(error)}") from None


def _check(path: Path, name: str, entry: FileEntry) -> None:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name:
        raise ValueError(f"{path}: {TEAM} names {name!r}, which is no file of an export")
    if _is_compiled(name):
        raise ValueError(f"{path}: {TEAM} lists {name}: an export brings code as source alone")
    file = path / name
    if not file.is_file():
        raise ValueError(f"{path}: {name} is missing")
    size = file.stat().st_size
    if size != entry.bytes:
        raise ValueError(f"{path}: {name} is damaged: it has {size:,} bytes of {entry.bytes:,}")
    if sha256(file) != entry.sha256:
        raise ValueError(f"{path}: {name} is damaged: it is not as it was written")


def others_in(path: Path) -> list[str]:
    """What lies in an export's folder and is not in its manifest; of a damaged one, everything but that."""
    try:
        mine = {TEAM, CARD, *atomic.read_json(path / TEAM)["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        mine = {TEAM}
    return [name for name in files_in(path) if name not in mine]


def _unlisted(path: Path, files: Mapping[str, FileEntry]) -> Sequence[str]:
    """Return the names of what lies in an export's folder and is not in its manifest. Links are not followed.

    Raises:
        ValueError: a folder in it is a link.
    """
    found = list[str]()
    for place, folders, names in os.walk(path):
        here = Path(place)
        for folder in folders:
            if (here / folder).is_symlink():
                name = (here / folder).relative_to(path).as_posix()
                raise ValueError(f"{path}: {name} is a link to another folder; put a copy of that in its place")
        found += [(here / name).relative_to(path).as_posix() for name in names]
    return sorted(name for name in found if name not in {*files, TEAM, CARD})


def _is_compiled(name: str) -> bool:
    """
    >>> [_is_compiled(name) for name in ("code/a.py", "code/a.PYC", "code/a.so.1", "code/__pycache__/a", "code/a.sock")]
    [False, True, True, True, False]
    """
    low = name.lower()
    return low.endswith(COMPILED) or ".so." in PurePosixPath(low).name or "__pycache__" in PurePosixPath(low).parts


def _is_loaded(name: str) -> bool:
    """Return whether a file that is in no manifest could be imported or loaded, by its name."""
    parts = PurePosixPath(name.lower()).parts
    inside = any(part.endswith(METADATA) for part in parts[:-1])
    code = _is_compiled(name) or parts[-1].endswith(CODE_ENDS)
    return inside or parts[0] in HELD or code or (len(parts) == 1 and parts[-1].endswith(LOADED))


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
