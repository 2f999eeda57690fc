"""``marft push``: upload an export, and nothing else, to the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, errors, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from marft.common.errors import RunError, UserError
from marft.common.texts import format_error, single_line, truncate
from marft.common.user_modules import MANIFEST
from marft.runs.export.manifest import CARD, load_export

SECRETS = re.compile(
    rb"\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
TRAINING_FILES = re.compile(r"optimizer|\.parquet$|(^|/)(state\.json|critic\.safetensors|\.env)$")
HTTPError = errors.HTTPError  # type: ignore[attr-defined]  # of huggingface_hub's HTTP library
LOGIN_HINT = "log in (hf auth login), or give one that may write by HF_TOKEN or --token"
UNKNOWN, FORBIDDEN = 401, 403
LARGEST_TEXT = 2**22  # maximum size of a file that is searched for secrets, in bytes


def push_export(path: Path, repo_id: str, *, private: bool = False, token: str = "") -> str:
    """Upload an export (files in the manifest, manifest, model card) and return the URL of its model page.

    Args:
        repo_id: ``name/model``; created if missing.
        token: access token of the Hub; "" for the one saved by ``hf auth login``.

    Raises:
        UserError: the export is invalid or damaged, or a file seems to hold a secret; nothing is uploaded.
        RunError: there is no token, or the Hub cannot be reached, refuses the upload, or is another service.
    """
    files = sorted([*load_export(path).manifest.files, MANIFEST, *([CARD] if (path / CARD).is_file() else [])])
    for problem in _find_problems(path, files):
        raise UserError(f"{path}: {problem}; nothing was uploaded")
    if not (token or get_token()):
        raise RunError(f"the hub takes nothing without a token, and there is none; {LOGIN_HINT}. Nothing was uploaded")
    hub = HfApi(token=token or None)
    try:
        page = hub.create_repo(repo_id, private=private or None, exist_ok=True)
        hub.upload_folder(
            folder_path=path,
            repo_id=repo_id,
            commit_message="A team trained with MARFT",
            allow_patterns=[_escape_glob(name) for name in files],
        )
    except HFValidationError as error:
        raise UserError(f"REPO_ID: {single_line(str(error))}") from error
    except OfflineModeIsEnabled as error:
        raise RunError("HF_HUB_OFFLINE is set, so that the hub is not asked; unset it") from error
    except (HTTPError, OSError) as error:
        raise RunError(_upload_error(error, repo_id, hub.endpoint, token or get_token() or "")) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # the library does not validate responses
        raise RunError(
            f"{hub.endpoint} does not answer as the hub does ({single_line(format_error(error))}); look at "
            "HF_ENDPOINT, its address"
        ) from error
    return str(page)


def _upload_error(error: Exception, repo_id: str, url: str, token: str) -> str:
    """Return an error message with the Hub's or the network's reason and a remedy, without the token."""
    reason = truncate(single_line(str(error) or type(error).__name__), 500)
    reason = reason.replace(token, "***") if token else reason
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == UNKNOWN:
        return f"the hub ({url}) does not know the token (401); {LOGIN_HINT}: {reason}"
    if status == FORBIDDEN:
        return f"the hub ({url}) knows the token, but does not let it write {repo_id} (403); {LOGIN_HINT}: {reason}"
    if status is None and isinstance(error, HTTPError):
        return f"the hub ({url}) cannot be reached: {reason}; look at the network, or at HF_ENDPOINT, its address"
    return f"the hub did not take {repo_id}: {reason}"


def _find_problems(path: Path, files: list[str]) -> Iterator[str]:
    for name in files:
        if TRAINING_FILES.search(name):
            yield f"{name} is of training, and no part of a team"
        file = path / name
        if file.stat().st_size <= LARGEST_TEXT and (match := SECRETS.search(file.read_bytes())):
            yield f"{name} holds what looks like a secret ({match[0][:4].decode('ascii', 'replace')}…); take it out"


def _escape_glob(name: str) -> str:
    """Return a glob pattern that matches only this name."""
    return re.sub(r"([*?[])", r"[\1]", name)
