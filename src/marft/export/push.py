"""``marft push``: an export to the Hugging Face hub, and nothing but the export."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from marft.errors import RunError
from marft.export.manifest import CARD, TEAM, load_export
from marft.texts import cut, one_line

SECRETS = re.compile(
    rb"\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
OF_TRAINING = re.compile(r"optimizer|\.parquet$|(^|/)(state\.json|critic\.safetensors|\.env)$")
LARGEST_TEXT = 2**22  # bytes of a file that is looked through


def push(path: Path, repo_id: str, *, private: bool = False, token: str = "") -> str:
    """Upload an export: the files that its manifest names, the manifest, the model card → the page of the model.

    Args:
        repo_id: ``name/model``; made where it is not there.
        token: of the hub; "" for the one that ``hf auth login`` has kept.

    Raises:
        ValueError: it is no export, it is damaged, or a file looks as if it held a secret; nothing is uploaded then.
        RunError: the hub does not take it.
    """
    files = sorted([*load_export(path).manifest.files, TEAM, *([CARD] if (path / CARD).is_file() else [])])
    for problem in _problems(path, files):
        raise ValueError(f"{path}: {problem}; nothing was uploaded")
    hub = HfApi(token=token or None)
    try:
        page = hub.create_repo(repo_id, private=private or None, exist_ok=True)
        hub.upload_folder(
            folder_path=path, repo_id=repo_id, commit_message="A team trained with MARFT",
            allow_patterns=[_literally(name) for name in files],
        )  # fmt: skip
    except HFValidationError as error:
        raise ValueError(f"REPO_ID: {one_line(str(error))}") from error
    except (HfHubHTTPError, OSError) as error:
        said = cut(one_line(str(error)), 500)
        raise RunError(f"the hub did not take {repo_id}: {said.replace(token, '***') if token else said}") from error
    return str(page)


def _problems(path: Path, files: list[str]) -> Iterator[str]:
    for name in files:
        if OF_TRAINING.search(name):
            yield f"{name} is of training, and no part of a team"
        file = path / name
        if file.stat().st_size <= LARGEST_TEXT and (found := SECRETS.search(file.read_bytes())):
            yield f"{name} holds what looks like a secret ({found[0][:4].decode('ascii', 'replace')}…); take it out"


def _literally(name: str) -> str:
    """A pattern that this name alone fits."""
    return re.sub(r"([*?[])", r"[\1]", name)
