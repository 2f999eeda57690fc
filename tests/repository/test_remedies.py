"""What is likely meant by a mistake is named with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from marft.cli.live import EpisodeScreen
from marft.common.errors import RunError
from marft.config import to_toml
from tests.helpers import settings
from tests.marft.cli.test_cli import run


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(settings("tiny", tmp_path / "runs")))
    return path


FROZEN = ("--policies.actor.train", "frozen", "--policies.reasoner.train", "frozen")


@pytest.mark.parametrize(
    ("options", "remedies"),
    [
        (("--steps", "3"), ["unknown key 'steps'; did you mean 'training.steps'?"]),
        (
            ("--learning_rate", "3"),
            ["did you mean 'algorithm.optimizer.learning_rate' or 'algorithm.critic.learning_rate' or "],
        ),
        (
            ("--policies.actor.lora", "{ rank = 16"),
            ["'{ rank = 16' is no TOML: Unclosed inline table; see that brackets and quotes end"],
        ),
        (("--environment", "{ name = 'math'"), ["is no TOML: Unclosed inline table"]),
        (("--environment.name", "my_parts:Mine"), ["neither installed nor in ", "the folder that holds my_parts, or"]),
        (FROZEN, ["policies: all are frozen, so there is nothing to train"]),
    ],
)
def test_a_recipe_that_is_refused_dry(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, options: tuple[str, ...], remedies: list[str]
) -> None:
    text = run(capsys, "train", str(recipe_file), "--dry-run", *options, status=2)
    assert all(remedy in text for remedy in remedies), text


@pytest.mark.parametrize(
    ("options", "remedies"),
    [
        (("--device", "gpu"), ["torch knows no such device); use 'cuda' for an NVIDIA GPU, 'cpu' or 'auto'"]),
        (("--models.base.path", "./nofolder"), ["cannot load './nofolder': there is no folder /", "Give 'tiny'"]),
        (
            ("--models.base.path", "runs/models/none"),
            ["cannot load 'runs/models/none': there is no folder /", "begins in the folder that marft runs in. Give"],
        ),
        (("--models.base.path", "models/none"), ["; as a folder: there is no folder /"]),
        (
            ("--models.base.path", "tinny"),
            ["cannot load 'tinny': ", "; as a folder: there is no folder /", ". Did you mean 'tiny'?"],
        ),
        (("--policies.actor.adapter", "./none"), ["no adapter at none: there is no folder /", "policies/actor"]),
        (("--output", "/proc/x"), ["/proc/x/test cannot be made: choose another place (--output)"]),
    ],
)
def test_a_start_that_is_refused(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, options: tuple[str, ...], remedies: list[str]
) -> None:
    text = run(capsys, "train", str(recipe_file), *options, status=2)
    assert all(remedy in text for remedy in remedies), text


@pytest.mark.parametrize("place", ["old", "old/checkpoints"])
def test_the_folder_of_a_run_is_no_checkpoint_and_has_some(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, place: str
) -> None:
    newest = recipe_file.parent / "old" / "checkpoints" / "step_000003"
    newest.mkdir(parents=True)
    text = run(capsys, "train", str(recipe_file), "--init-from", str(recipe_file.parent / place), status=2)
    assert f"give one such as {newest}" in text


def test_a_text_may_begin_like_a_list(capsys: pytest.CaptureFixture[str], recipe_file: Path) -> None:
    words = ("--agents.actor.instructions", "[Think] first")
    assert 'instructions = "[Think] first"' in run(capsys, "train", str(recipe_file), "--dry-run", *words)


def test_an_input_that_ends_is_said_to_whoever_was_to_play(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object, **__: object) -> str:
        raise EOFError

    monkeypatch.setattr("marft.cli.live.Prompt.ask", ended)
    with pytest.raises(RunError, match="the input ended when it was actor's turn"):
        EpisodeScreen(None).ask("actor", ())  # type: ignore[arg-type]
