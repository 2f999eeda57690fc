"""What goes to the hub is what an export lists, whole and without secrets; where it cannot, nothing does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from marft.common.errors import RunError
from marft.runs.export.exporter import export_run
from marft.runs.export.manifest import load_export, write_manifest
from marft.runs.export.push import _find_problems, push_export
from marft.runs.run_folder import RunFolder
from tests.exports import MANIFEST
from tests.hub import Hub, hub
from tests.nights import BY_NIGHT

TOKEN = "hf_" + "a" * 34


@pytest.fixture(scope="module")
def exported(trained: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_run(trained, "last", tmp_path_factory.mktemp("push") / "team")


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "team"))


def run(there: Hub, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, with a hub of ours."""
    environment = {
        **os.environ, "HF_ENDPOINT": there.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HOME": str(folder.parent / "home"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "marft", "push", str(folder), "me/team", *words], capture_output=True, text=True,
        env=environment,
    )  # fmt: skip


@pytest.mark.slow
class TestTheCommand:
    @BY_NIGHT
    def test_it_uploads_what_is_listed_and_nothing_beside_it(self, folder: Path) -> None:
        (folder / ".env").write_text("KEY=1")
        (folder / "episodes").mkdir()
        (folder / "episodes" / "step_000001.parquet").write_bytes(b"mine")
        with hub() as there:
            done = run(there, folder, "--private")
            assert done.returncode == 0, done.stderr
            assert "me/team" in done.stdout
        listed = {*load_export(folder).manifest.files, "team.json", "README.md"}
        assert set(there.files) == listed
        assert all(there.files[name] == (folder / name).read_bytes() for name in listed)
        assert [(one["name"], one["visibility"]) for one in there.made] == [("team", "private")]
        assert f"Bearer {TOKEN}" in there.tokens

    @BY_NIGHT
    def test_weights_that_are_not_listed_are_refused(self, folder: Path) -> None:
        (folder / "optimizer.safetensors").write_bytes(b"mine")
        with hub() as there:
            done = run(there, folder)
        assert (done.returncode, there.files) == (2, {})
        assert "optimizer.safetensors was not written with it; remove it" in done.stderr

    @BY_NIGHT
    def test_what_the_hub_says_is_told_without_the_token(self, folder: Path) -> None:
        with hub(refuses=403) as there:
            done = run(there, folder)
        assert done.returncode == 2
        assert "knows the token, but does not let it write me/team (403); log in (hf auth login)" in done.stderr
        assert "You do not have the rights" in done.stderr
        assert TOKEN not in done.stderr + done.stdout


class TestTheHub:
    @pytest.fixture
    def at(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
        """Has the hub be at an address; without a token that is kept here."""
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        return lambda url: monkeypatch.setattr(constants, "ENDPOINT", url)

    def test_without_a_token_it_is_not_asked(self, folder: Path, at: Callable[[str], None]) -> None:
        with hub() as there:
            at(there.url)
            with pytest.raises(RunError, match=r"there is none; log in \(hf auth login\).*HF_TOKEN or --token"):
                push_export(folder, "me/team")
        assert there.asked == []

    def test_where_nobody_answers_its_address_is_named(self, folder: Path, at: Callable[[str], None]) -> None:
        with hub() as there:
            at(there.url)
        with pytest.raises(
            RunError, match=rf"the hub \({there.url}\) cannot be reached: .*network.*HF_ENDPOINT"
        ) as told:
            push_export(folder, "me/team", token=TOKEN)
        assert "\n" not in str(told.value)

    def test_what_answers_in_its_place_is_named(self, folder: Path, at: Callable[[str], None]) -> None:
        """The sign-in page of a network, for one, or another server by a mistake in ``HF_ENDPOINT``."""
        with hub(refuses=200) as there:
            at(there.url)
            with pytest.raises(RunError, match=rf"{there.url} does not answer as the hub does \(KeyError.*HF_ENDPOINT"):
                push_export(folder, "me/team", token=TOKEN)

    def test_a_token_that_it_does_not_know_is_told(self, folder: Path, at: Callable[[str], None]) -> None:
        with hub(refuses=401) as there:
            at(there.url)
            with pytest.raises(RunError, match=r"does not know the token \(401\); log in"):
                push_export(folder, "me/team", token=TOKEN)

    def test_offline_it_is_not_asked(
        self, folder: Path, at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(RunError, match="HF_HUB_OFFLINE is set"):
            push_export(folder, "me/team", token=TOKEN)


class TestRefusals:
    def test_a_damaged_export_is_not_uploaded(self, folder: Path) -> None:
        (folder / "recipe.toml").write_text("name = 'other'")
        with pytest.raises(ValueError, match=r"recipe\.toml is damaged"):
            push_export(folder, "me/team")

    @pytest.mark.parametrize("name", ["README.md", "recipe.toml"])
    def test_nor_is_one_that_holds_a_secret(self, folder: Path, name: str) -> None:
        (folder / name).write_text((folder / name).read_text() + f"\n# {TOKEN}\n")
        rewritten(folder)
        with pytest.raises(ValueError, match=rf"{name} holds what looks like a secret \(hf_a…\).*nothing was uploaded"):
            push_export(folder, "me/team")

    def test_nor_is_what_is_of_training(self, folder: Path) -> None:
        (folder / "optimizer.safetensors").write_bytes(b"mine")
        rewritten(folder)
        with pytest.raises(ValueError, match=r"optimizer\.safetensors is of training"):
            push_export(folder, "me/team")

    def test_nor_is_another_folder(self, trained: RunFolder) -> None:
        with pytest.raises(ValueError, match="is no export of a team"):
            push_export(trained.path, "me/team")


@pytest.mark.parametrize(
    "secret", ["ghp_" + "a" * 36, "sk-" + "a1_-" * 6, "AKIA" + "A1" * 8, "-----BEGIN OPENSSH PRIVATE KEY-----", TOKEN]
)
def test_secrets_of_every_kind_are_seen(secret: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f'key = "{secret}"')
    (problem,) = _find_problems(tmp_path, ["recipe.toml"])
    assert problem.startswith("recipe.toml holds what looks like a secret")
    assert secret not in problem


@pytest.mark.parametrize("name", ["critic.safetensors", "code/.env", "state.json", "a/episodes.parquet"])
def test_files_of_training_are_seen(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    (tmp_path / "mystate.json").write_text("")
    assert list(_find_problems(tmp_path, [name, "mystate.json"])) == [f"{name} is of training, and no part of a team"]


class Asked:
    """Stands in the place of the hub's own client: notes what it is asked for."""

    def __init__(self, refuses: bool) -> None:
        self.refuses, self.said, self.endpoint = refuses, dict[str, Any](), "https://hub"

    def __call__(self, token: str | None) -> Asked:
        self.said["token"] = token
        return self

    def create_repo(self, repo_id: str, **options: Any) -> str:
        self.said |= {"repo_id": repo_id, **options}
        return f"https://hub/{repo_id}"

    def upload_folder(self, **options: Any) -> None:
        self.said |= options
        if self.refuses:
            raise OSError(f"cannot send with {self.said['token']}")


class TestTheClient:
    def test_it_is_given_the_token_and_the_listed_names_and_no_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "skills").mkdir()
        listed = ["recipe.toml", "skills/[a]*.md", "skills/[a]?.md"]
        for name in listed:
            (tmp_path / name).write_text("name = 'x'")
        write_manifest(tmp_path, MANIFEST)
        monkeypatch.setattr("marft.runs.export.push.HfApi", asked := Asked(refuses=False))
        assert push_export(tmp_path, "me/team", private=True, token=TOKEN) == "https://hub/me/team"
        assert (asked.said["token"], asked.said["private"], asked.said["exist_ok"]) == (TOKEN, True, True)
        beside = ["skills/a.md", "skills/ab.md", "skills/[a]x.md", "optimizer.safetensors"]
        sent = filter_repo_objects([*listed, "team.json", *beside], allow_patterns=asked.said["allow_patterns"])
        assert sorted(sent) == sorted([*listed, "team.json"])

    def test_a_failure_is_told_without_the_token(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "recipe.toml").write_text("")
        write_manifest(tmp_path, MANIFEST)
        monkeypatch.setattr("marft.runs.export.push.HfApi", Asked(refuses=True))
        with pytest.raises(RunError, match=r"the hub did not take me/team: cannot send with \*\*\*$"):
            push_export(tmp_path, "me/team", token=TOKEN)


def rewritten(folder: Path) -> None:
    """Have the manifest list what is there now."""
    import json

    table = json.loads((folder / "team.json").read_text())
    (folder / "team.json").unlink()
    kept = ("format", "schema_version", "files", "digest")
    write_manifest(folder, {key: value for key, value in table.items() if key not in kept})
