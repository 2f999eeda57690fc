"""``marft push``: an export to the Hugging Face hub, and nothing but the export."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, errors, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from marft.common.errors import RunError
from marft.common.texts import cut, one_line, raised
from marft.common.user_modules import TEAM
from marft.runs.export.manifest import CARD, load_export

SECRETS = re.compile(
    rb"\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
OF_TRAINING = re.compile(r"optimizer|\.parquet$|(^|/)(state\.json|critic\.safetensors|\.env)$")
HTTPError = errors.HTTPError  # type: ignore[attr-defined]  # of the library that the hub's asks with
LOG_IN = "log in (hf auth login), or give one that may write by HF_TOKEN or --token"
UNKNOWN, FORBIDDEN = 401, 403
LARGEST_TEXT = 2**22  # bytes of a file that is looked through


def push(path: Path, repo_id: str, *, private: bool = False, token: str = "") -> str:
    """Upload an export: the files that its manifest names, the manifest, the model card → the page of the model.

    Args:
        repo_id: ``name/model``; made where it is not there.
        token: of the hub; "" for the one that ``hf auth login`` has kept.

    Raises:
        ValueError: it is no export, it is damaged, or a file looks as if it held a secret; nothing is uploaded then.
        RunError: there is no token, the hub cannot be reached, does not take it, or is none.
    """
    files = sorted([*load_export(path).manifest.files, TEAM, *([CARD] if (path / CARD).is_file() else [])])
    for problem in _problems(path, files):
        raise ValueError(f"{path}: {problem}; nothing was uploaded")
    if not (token or get_token()):
        raise RunError(f"the hub takes nothing without a token, and there is none; {LOG_IN}. Nothing was uploaded")
    hub = HfApi(token=token or None)
    try:
        page = hub.create_repo(repo_id, private=private or None, exist_ok=True)
        hub.upload_folder(
            folder_path=path, repo_id=repo_id, commit_message="A team trained with MARFT",
            allow_patterns=[_literally(name) for name in files],
        )  # fmt: skip
    except HFValidationError as error:
        raise ValueError(f"REPO_ID: {one_line(str(error))}") from error
    except OfflineModeIsEnabled as error:
        raise RunError("HF_HUB_OFFLINE is set, so that the hub is not asked; unset it") from error
    except (HTTPError, OSError) as error:
        raise RunError(_refusal(error, repo_id, hub.endpoint, token or get_token() or "")) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # it reads what it is answered as it likes
        raise RunError(
            f"{hub.endpoint} does not answer as the hub does ({one_line(raised(error))}); look at HF_ENDPOINT, its "
            "address"
        ) from error
    return str(page)


def _refusal(error: Exception, repo_id: str, url: str, token: str) -> str:
    """What the hub, or the way there, has said, and what to do; without the token."""
    said = cut(one_line(str(error) or type(error).__name__), 500)
    said = said.replace(token, "***") if token else said
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == UNKNOWN:
        return f"the hub ({url}) does not know the token (401); {LOG_IN}: {said}"
    if status == FORBIDDEN:
        return f"the hub ({url}) knows the token, but does not let it write {repo_id} (403); {LOG_IN}: {said}"
    if status is None and isinstance(error, HTTPError):
        return f"the hub ({url}) cannot be reached: {said}; look at the network, or at HF_ENDPOINT, its address"
    return f"the hub did not take {repo_id}: {said}"


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
