"""What models are known by is remembered with the files that they are read from, and for these alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest

from marft.common import atomic
from marft.config import RunSettings
from marft.config.bundled import bundled_models
from marft.models import digest_cache
from marft.models.digest_cache import list_model_files, save_digests
from tests.marft.evaluation.test_kept_evaluations import lengths

DIGESTS = {"models.base": "x"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "marft" / "models"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder whose files were written long ago."""
    folder = Path(shutil.copytree(bundled_models()["tiny"], tmp_path / "model"))
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    return folder


def run_on(model: Path | str, tmp_path: Path, *overrides: str, **more: str) -> RunSettings:
    return lengths(tmp_path, *overrides, models={"base": {"path": str(model), **more}})


def is_known(run: RunSettings) -> bool:
    return digest_cache.load_digests(run, list_model_files(run)) == DIGESTS


@pytest.mark.parametrize("what", ["size", "time", "file"])
def test_a_file_is_another_by_its_size_its_time_or_its_place_on_the_disk(
    model: Path, tmp_path: Path, what: str
) -> None:
    run, file = run_on(model, tmp_path), model / "config.json"
    save_digests(run, list_model_files(run), DIGESTS)
    assert is_known(run)
    if what == "size":
        file.write_text(f"{file.read_text()} ")
        os.utime(file, (1, 1))
    elif what == "time":
        os.utime(file, (2, 2))
    else:
        shutil.copy2(file, model / "copy")
        (model / "copy").replace(file)
    assert not is_known(run)


def test_a_file_is_known_by_its_own_name_where_that_leads_to_another(model: Path, tmp_path: Path) -> None:
    """As in the cache of a hub; a template that is called otherwise is read no more."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in model.iterdir():
        (linked / path.name).symlink_to(path)
    run = run_on(linked, tmp_path)
    save_digests(run, list_model_files(run), DIGESTS)
    assert is_known(run)
    (linked / "chat_template.jinja").rename(linked / "chat_template.off")
    assert not is_known(run)


def test_files_of_frozen_adapters_count_and_who_is_read_with_them(model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    os.utime(adapter / "adapter_config.json", (1, 1))
    one, other = (
        run_on(model, tmp_path, f"--policies.{role}.adapter", str(adapter), f"--policies.{role}.train", "frozen")
        for role in ("actor", "reasoner")
    )
    save_digests(one, list_model_files(one), DIGESTS)
    assert is_known(one)
    assert not is_known(other)
    os.utime(adapter / "adapter_config.json", (2, 2))
    assert not is_known(one)


def test_a_model_behind_an_endpoint_is_read_from_no_file(model: Path, tmp_path: Path) -> None:
    far = {"path": "nobody/has-this-here", "endpoint": {"url": "http://localhost:1/v1"}}
    policies = {"reasoner": {"model": "far", "train": "frozen"}, "actor": {"model": "base"}}
    run = lengths(tmp_path, models={"base": {"path": str(model)}, "far": far}, policies=policies)
    assert list_model_files(run) == list_model_files(run_on(model, tmp_path)) != []


def test_what_another_version_has_found_is_found_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_on(model, tmp_path)
    save_digests(run, list_model_files(run), DIGESTS)
    for package in ("torch", "transformers"):
        with monkeypatch.context() as patched:
            patched.setattr(digest_cache, "version", lambda name, package=package: "0" if name == package else "1")
            other = digest_cache.load_digests(run, list_model_files(run))
            patched.setattr(digest_cache, "version", lambda _: "1")
            save_digests(run, list_model_files(run), DIGESTS)
            assert is_known(run)
        assert other is None
    assert is_known(run)
    monkeypatch.setattr(digest_cache, "__version__", "0")
    assert not is_known(run)


def test_a_model_of_the_hub_is_the_revision_that_is_asked_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    here = tmp_path / "hub" / "models--a--b"
    (here / "refs").mkdir(parents=True)
    for revision, commit in (("main", "1" * 40), ("v2", "2" * 40)):
        (here / "refs" / revision).write_text(commit)
        shutil.copytree(model, here / "snapshots" / commit)
    places = {}
    for revision in ("main", "v2"):
        files = list_model_files(run_on("a/b", tmp_path, revision=revision))
        assert files
        places[revision] = {Path(path).parent.name for path, *_ in files}
    assert places == {"main": {"1" * 40}, "v2": {"2" * 40}}
    assert list_model_files(run_on("a/b", tmp_path, revision="v3")) is None


def test_a_folder_that_holds_more_than_a_model_is_not_looked_through(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "more").mkdir()
    (model / "more" / "notes.txt").touch()
    run, number = run_on(model, tmp_path), sum(path.is_file() for path in model.rglob("*"))
    monkeypatch.setattr(digest_cache, "MAX_FILES", number)
    assert len(list_model_files(run) or ()) == number
    monkeypatch.setattr(digest_cache, "MAX_FILES", number - 1)
    assert list_model_files(run) is None


def test_the_newest_answers_stay(model: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_cache, "MAX_ENTRIES", 2)
    runs = [run_on(model, tmp_path, "--policies.actor.lora.rank", str(rank)) for rank in (1, 2, 3, 4)]
    for number, run in enumerate(runs):
        save_digests(run, list_model_files(run), DIGESTS)
        (newest,) = set(cache.glob("*.json")) - {path for path in cache.glob("*.json") if path.stat().st_mtime < 1000}
        os.utime(newest, (number, number))
    assert [is_known(run) for run in runs] == [False, False, True, True]


def test_where_nothing_can_be_remembered_models_are_loaded_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, __: str) -> None:
        raise OSError("no space left")

    run = run_on(model, tmp_path)
    monkeypatch.setattr(atomic, "write_file", full)
    save_digests(run, list_model_files(run), DIGESTS)
    assert not is_known(run)
