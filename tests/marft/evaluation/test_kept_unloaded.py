"""Evaluations that are kept are answered without models, writing or a lock; and never for another question."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from marft.config.bundled import bundled_models
from marft.evaluation import store
from marft.evaluation.evaluate import build_attempts
from marft.evaluation.store import EvaluationStore
from marft.models import digest_cache
from marft.rollout import local_runner as rollouts_here
from marft.runs import lock
from tests.marft.evaluation.test_kept_evaluations import found, lengths, plays, said  # noqa: F401
from tests.marft.runs.test_faults import held_to_permissions  # noqa: F401
from tests.nights import BY_NIGHT


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on."""

    def load(_: object) -> None:
        raise AssertionError("models were loaded")

    return lambda: monkeypatch.setattr(rollouts_here, "open_rollout_runner", load)


def test_where_all_is_kept_no_model_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nothing_is_loaded: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    first = found(run, kept, shuffled=True)
    nothing_is_loaded()
    again = found(run, kept, shuffled=True)
    assert [said(one) for one in again] == [said(one) for one in first]
    assert [one.key for one in again] == [one.key for one in first]
    assert caplog.messages == ["2 of 2 evaluations were kept from before; --rerun plays them anew"]
    for other in ({"attempts": 3}, {"again": True}, {"run": lengths(tmp_path, "--seed", "9")}):
        with pytest.raises(AssertionError, match="were loaded"):
            found(**{"run": run, "folder": kept, "shuffled": True, **other})


@pytest.mark.parametrize(
    "change", ["weights", *(pytest.param(one, marks=BY_NIGHT) for one in ("template", "adapter")), "damage"]
)
def test_models_are_loaded_again_where_a_file_of_theirs_or_what_is_kept_is_another(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plays: list[int],  # noqa: F811
    change: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, template, kept = tmp_path / "model", tmp_path / "template.jinja", tmp_path / "evaluations"
    shutil.copytree(bundled_models()["tiny"], model)
    template.write_text((model / "chat_template.jinja").read_text())
    for path in [*model.iterdir(), template]:
        os.utime(path, (1, 1))
    chosen = {"models": {"base": {"path": str(model), "chat_template": str(template)}}}
    run = lengths(tmp_path, **chosen)
    found(run, kept)
    assert digest_cache.load_digests(run, digest_cache.list_model_files(run)) is not None
    plays.clear()
    if change == "weights":
        weights = load_file(model / "model.safetensors")
        save_file({name: tensor * 1.5 for name, tensor in weights.items()}, model / "model.safetensors")
        os.utime(model / "model.safetensors", (2, 2))
    elif change == "template":
        template.write_text(template.read_text() + " ")
    elif change == "adapter":
        run = lengths(tmp_path, "--policies.actor.lora.rank", "2", **chosen)
    else:
        (kept / "base-sampled.parquet").write_bytes(b"PAR1")
    assert (digest_cache.load_digests(run, digest_cache.list_model_files(run)) is None) == (change != "damage")
    found(run, kept)
    assert sum(plays) == 10, "played anew"


def test_what_was_written_a_moment_ago_or_since_it_was_loaded_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tmp_path / "model"
    shutil.copytree(bundled_models()["tiny"], model)
    run = lengths(tmp_path, models={"base": {"path": str(model)}})
    for name in ("config.json", "model.safetensors"):
        files = digest_cache.list_model_files(run)
        assert files
        os.utime(model / name)
        digest_cache.save_digests(
            run, files if name == "config.json" else digest_cache.list_model_files(run), {"models.base": "x"}
        )
        assert digest_cache.load_digests(run, digest_cache.list_model_files(run)) is None
    for path in model.iterdir():
        os.utime(path, (1, 1))
    digest_cache.save_digests(run, digest_cache.list_model_files(run), {"models.base": "x"})
    assert digest_cache.load_digests(run, digest_cache.list_model_files(run)) == {"models.base": "x"}
    missing = lengths(tmp_path, models={"base": {"path": "nobody/has-this-here"}})
    assert digest_cache.list_model_files(missing) is None


@pytest.mark.parametrize("loads", [True, False])
def test_a_run_that_takes_nothing_says_what_is_kept_and_what_is_not(
    held_to_permissions: None,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nothing_is_loaded: Callable[[], None],
    loads: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    (first,) = found(run, kept)
    (kept / "eval.lock").unlink()
    kept.chmod(0o555)
    try:
        if loads:
            shutil.rmtree(tmp_path / "cache")
        else:
            nothing_is_loaded()
        assert said(found(run, kept)[0]) == said(first)
        if loads:
            with pytest.raises(ValueError, match=r"not all that is asked for is kept.*Permission denied.*a copy"):
                found(run, kept, attempts=1)
    finally:
        kept.chmod(0o755)


def test_what_is_kept_is_read_while_another_process_evaluates_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    (first,) = found(run, kept)
    with lock.lock_file(kept / "eval.lock"):
        assert said(found(run, kept)[0]) == said(first)


def test_episodes_that_another_process_has_put_there_meanwhile_are_not_taken_for_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its evaluation is of other weights, and of the same tasks."""
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    (first,) = found(run, kept)
    attempts = build_attempts([*run.environment.tasks("test")], 2, "sampled")
    place = EvaluationStore(kept, "base-sampled", first.key)
    assert place.read_episodes(attempts)
    read = store.read_episodes

    def slowly(path: Path) -> Any:
        EvaluationStore(kept, "base-sampled", "other").finish(read(path), {**first.as_json(), "key": "other"})
        return read(path)

    monkeypatch.setattr(store, "read_episodes", slowly)
    assert place.read_episodes(attempts) is None
