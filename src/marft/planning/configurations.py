"""Where a model's ``config.json`` is: given, bundled, in a folder, or in the hub's cache on this disk."""

from __future__ import annotations

import json
from pathlib import Path

from marft.atomic import read_text
from marft.config.models import BUNDLED, ModelSettings
from marft.planning.known import KNOWN, known_shape
from marft.planning.shapes import Shape, shape_of

CONFIG = "config.json"


def find_shape(name: str, model: ModelSettings, given: Path | None = None) -> Shape:
    """The sizes of a recipe's model; no weights are read and nothing is fetched.

    Args:
        given: a ``config.json``, or the folder of one, in place of the model's own.

    Raises:
        ValueError: they are not known here.
    """
    if given is not None:
        file = given / CONFIG if given.is_dir() else given
        if not file.exists():
            raise ValueError(f"--model-config: there is no {file}; give a model's config.json, or the folder it is in")
        return _read(file, "--model-config")
    folder = BUNDLED.get(model.path, Path(model.path))
    if (folder / CONFIG).is_file():
        return _read(folder / CONFIG, f"models.{name}.path {model.path!r}")
    cached = _cached(model)
    if cached is not None:
        return _read(cached, f"models.{name}.path {model.path!r}")
    known = known_shape(model.path)
    if known is None:
        raise ValueError(
            f"models.{name}.path: the sizes of {model.path!r} are not known here: it is no folder, not in the hub's "
            f"cache, and none of {', '.join(KNOWN)}; give its config.json:  --model-config FILE"
        )
    return known


def _cached(model: ModelSettings) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model.path, CONFIG, revision=model.revision)
    except HFValidationError:  # it is a path, and nothing is there
        return None
    return Path(found) if isinstance(found, str) else None


def _read(path: Path, where: str) -> Shape:
    try:
        table = json.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{where}: cannot read {path}: {error.strerror}; give one that can be read") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: cannot read {path}: {error}; give a model's config.json") from error
    if not isinstance(table, dict):
        raise ValueError(f"{where}: {path} holds no table; give a model's config.json")
    return shape_of(table, where)
