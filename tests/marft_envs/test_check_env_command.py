"""``marft check-env`` and ``marft_envs.check_environment``: what they take, what they say, how they end."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_envs
from marft_envs.env_check.runner import CHECKS
from marft_envs.env_check.target import find_target, target_from_object
from tests import faulty
from tests.marft.cli.test_cli import run
from tests.nights import some

QUICK: dict[str, Any] = {
    "tasks": 1,
    "held_out_tasks": 0,
    "max_steps": 6,
    "use_processes": False,
    "max_blocking_seconds": 0.25,
}
WORDS = ("--in-process", "--num-tasks", "1", "--max-steps", "6", "--max-blocking-ms", "250", "--max-median-ms", "500")


class TestTheCommand:
    def test_says_of_every_check_what_passes_and_ends_with_0(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = run(capsys, "check-env", "tests.faulty:Sound", *WORDS)
        assert all(name in said for name in CHECKS)
        assert f"tests.faulty:Sound: {len(CHECKS)} checks, all passed" in said

    def test_ends_with_1_on_a_failure_with_cause_and_remedy(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = run(capsys, "check-env", "tests.faulty:Generous", *WORDS, status=1)
        assert "range failure outside of -1 to 1: the team earns 10" in said
        assert "→ scale it" in said

    @pytest.mark.slow
    def test_ends_with_0_on_a_warning(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "1 warned" in run(capsys, "check-env", "tests.faulty:Long", *WORDS)

    @pytest.mark.slow
    def test_tells_programs_one_object(self, capsys: pytest.CaptureFixture[str]) -> None:
        told = json.loads(run(capsys, "check-env", "tests.faulty:Locked", "--json", *WORDS, status=1))
        assert (told["event"], told["passed"], told["environment"]) == ("checked", False, "tests.faulty:Locked")
        (failed,) = [check for check in told["checks"] if check["grade"] == "failure"]
        assert failed["check"] == "closing"
        assert failed["findings"][0]["remedy"]

    def test_takes_an_environments_keys_behind_its_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = run(capsys, "check-env", "marft.examples.plugins:Guess", "--highest", "x", *WORDS, status=2)
        assert "highest: input should be a valid integer (given: 'x')" in said

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("nobody",), "no environment is called 'nobody'; known:"),
            (("nowhere.toml",), "no recipe at nowhere.toml"),
            (("relay", "--nobodys-key", "3"), "unknown key 'nobodys-key'"),
            (("math", "--split", "x"), "path: is missing"),  # a key of its own, and no misspelled option
            (("relay", "--max-step", "3"), "no option is called '--max-step'; did you mean '--max-steps'?"),
            (("--in-process",), "Missing argument"),
        ],
    )
    def test_refuses_in_words(self, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
        assert message in run(capsys, "check-env", *words, status=2)


class TestFromPython:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "environment", some([faulty.Sound, faulty.Sound(), "tests.faulty:Sound", {"name": "tests.faulty:Sound"}])
    )
    def test_an_environment_may_be_given_as_anything(self, environment: Any) -> None:
        report = marft_envs.check_environment(environment, limits={**QUICK, "max_median_seconds": 0.5})
        assert report.passed
        assert report.episodes > 20

    @pytest.mark.slow
    def test_a_class_takes_keys_and_one_of_no_module_is_asked_here_alone(self) -> None:
        class Sized(faulty.Sound):
            size: int = 1

        report = marft_envs.check_environment(Sized, limits={**QUICK, "use_processes": True}, size=3)
        (verdict,) = [verdict for verdict in report.results if verdict.check == "repeatable"]
        assert "its class lies in no module that another process can import" in verdict.findings[0].cause

    def test_what_is_no_environment_is_refused(self) -> None:
        wrong: Any = 3
        with pytest.raises(ValueError, match=r"an environment is its name, .* this is of type int"):
            marft_envs.check_environment(wrong)
        with pytest.raises(ValueError, match="is an object; set size there, or give its class"):
            marft_envs.check_environment(faulty.Sound(), size=3)
        with pytest.raises(ValueError, match=r"limits: .*'task'"):
            marft_envs.check_environment(faulty.Sound, limits={"task": 3})

    @pytest.mark.slow
    def test_whoever_asks_gets_shared_generators_back_as_they_were(self) -> None:
        random.seed(7)
        np.random.seed(7)
        marft_envs.check_environment(faulty.Sound, limits=QUICK)
        drawn = random.random(), np.random.random()
        random.seed(7)
        np.random.seed(7)
        assert drawn == (random.random(), np.random.random())


class TestWhatIsNamed:
    def test_a_recipe_brings_its_team_and_its_limit(self, tmp_path: Path) -> None:
        subject = find_target("relay", {"noise": 0.25})
        assert [profile.role for profile in subject.profiles] == ["north", "south"]
        assert subject.max_steps == 4
        assert subject.terms == {}
        assert subject.environment.noise == 0.25  # type: ignore[attr-defined]

    def test_another_process_makes_the_same_of_it(self) -> None:
        subject = find_target("relay", {"values": 5})
        assert subject.settings_table is not None
        assert subject.settings_table["values"] == 5

    def test_one_that_holds_more_than_its_keys_say_is_not_made_elsewhere(self) -> None:
        class Held(faulty.Sound):
            pass

        holding = faulty.Sound()
        holding.__dict__["more"] = 3
        assert target_from_object(Held()).settings_table is None
        assert target_from_object(holding).environment is holding
        assert target_from_object(holding).settings_table is None
        assert target_from_object(faulty.Sound()).settings_table == {"name": "tests.faulty:Sound"}
