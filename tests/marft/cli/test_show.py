"""``marft show``: recorded episodes, read without the data, rewards and models of their run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from marft.cli.main import app
from marft.common.types import Episode, Fork, Observation, Task, ToolCall, Transition
from marft.evaluation.transcripts import PromptDecoder, count_failure_reasons, diff_texts, extract_answer, sort_episodes
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from tests.episodes import make_action
from tests.helpers import recipe, settings
from tests.marft.cli.test_cli import run
from tests.marft.cli.test_obeyed import OBEYED, hostile_episode


def episode(
    sample: int = 0, said: str = "the answer", reward: float = 1.0, task: str = "sum/1", **changes: object
) -> Episode:
    actions = (
        replace(make_action("reasoner", index=0, text="the plan", task=task, sample=sample),
                calls=(ToolCall("add", '{"a": 1}', "2"), ToolCall("add", "{", "no JSON", error=True)),
                intermediate_texts=("before the tools",)),
        replace(make_action("actor", index=1, sees=("0/reasoner/0",), text=said, task=task, sample=sample), finish="length"),
    )  # fmt: skip
    transitions = (
        Transition(Observation("What is 1 + 1?"), reward, {"actor": 0.25}, {"outcome": reward, "format/actor": 0.25}),
    )
    made = Episode(Task(task, "What is 1 + 1?"), "train/0", sample, actions, "terminated", transitions, reward > 0)
    return replace(made, **changes)  # type: ignore[arg-type]


def lost(sample: int, why: str, status: str = "failed") -> Episode:
    return episode(sample, status=status, error=why, transitions=(), success=None)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(settings("tiny", tmp_path))
    record(made, 1, [episode(0, "first\nsame"), episode(1, reward=0.0)])
    record(made, 5, [episode(0, "last\nsame"), episode(1, reward=0.5, said="half"), episode(2, reward=-1.0, said="none"),
                     lost(3, "boom (env.py:3)"), lost(4, "boom (env.py:3)"), lost(5, "late", "timed_out")])  # fmt: skip
    return made


def record(folder: RunFolder, step: int, episodes: Sequence[Episode]) -> None:
    write_episodes(folder.episodes / f"step_{step:06d}.parquet", episodes)


def forget_the_model(folder: RunFolder, **changes: object) -> None:
    """A recipe that names parts that are not there any more."""
    table = recipe("/no/model/here", environment={"name": "gone.for_good:Environment"}, **changes)
    folder.config_path.write_text(tomli_w.dumps(table))


class TestTheCommand:
    def test_it_tells_what_each_agent_saw_said_used_and_earned(
        self, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        forget_the_model(folder)
        text = run(capsys, "show", str(folder.path), "--step", "5", "--count", "1")
        for told in (
            "step 5: 1 of 6 episodes", "train/0 sum/1 #0", "the environment shows", "What is 1 + 1?", "before the tools",
            'reasoner uses add {"a": 1} → 2', "reasoner uses add { → no JSON", "actor reads of 0/reasoner/0: the plan",
            "0/actor/0 says, 2 tokens, cut at its limit", "last", "terminated: reward 1, actor 0.25 solved",
            "reward term team actor", "outcome +1", "format +0.25",
        ):  # fmt: skip
            assert told in text, told

    def test_a_prompt_is_shown_as_the_model_saw_it_where_the_tokenizer_is_at_hand(
        self, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        from tokenizers import Tokenizer

        from marft.config.bundled import resolve_path

        ids = Tokenizer.from_file(f"{resolve_path('tiny')}/tokenizer.json").encode("Seven plus two.").ids
        one = episode()
        actions = [replace(action, prompt=np.array(ids, np.int32), truncated_tokens=3) for action in one.actions]
        record(folder, 9, [replace(one, actions=tuple(actions))])
        text = run(capsys, "show", str(folder.path))
        assert f"reasoner sees {len(ids)} tokens, 3 more were cut" in text
        assert "Seven plus two." in text
        assert "reads of" not in text

    def test_one_agent_may_be_read_alone(self, capsys: pytest.CaptureFixture[str], folder: RunFolder) -> None:
        text = run(capsys, "show", str(folder.path), "--agent", "actor")
        assert "0/actor/0 says" in text
        assert "0/reasoner/0 says" not in text
        told = run(capsys, "show", str(folder.path), "--agent", "actr", status=2)
        assert "nobody called 'actr' acted here; did you mean 'actor'?" in told

    @pytest.mark.parametrize(
        ("option", "samples"),
        [("--worst", [2, 1]), ("--best", [0, 1]), ("--failed", [3, 4]), ("", [0, 1])],
    )
    def test_the_worst_the_best_or_the_failed_come_first(
        self, option: str, samples: list[int], capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        text = run(capsys, "show", str(folder.path), *([option] if option else []), "--count", "2")
        assert [int(number) for number in re.findall(r"train/0 sum/1 #(\d)", text)] == samples

    def test_reasons_of_dropped_episodes_are_counted(
        self, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        text = run(capsys, "show", str(folder.path), "--best", "--count", "1")
        assert "3 of 6 episodes could not be scored: 2 × failed: boom (env.py:3) 1 × timed_out: late" in text
        assert "could not be scored" not in run(capsys, "show", str(folder.path), "--step", "1")
        failed = run(capsys, "show", str(folder.path), "--failed", "--count", "1")
        assert "failed: not scored boom (env.py:3)" in failed
        assert "reward 0" not in failed, "no score is no reward of 0"

    def test_a_task_is_followed_over_the_steps(self, capsys: pytest.CaptureFixture[str], folder: RunFolder) -> None:
        text = run(capsys, "show", str(folder.path), "--task", "sum/1")
        assert "1 0 1 solved first same" in text
        assert "1 1 0 not solved the answer" in text
        assert "5 3 failed the answer" in text
        assert "--- step 1 #0 +++ step 5 #0 @@ -1,2 +1,2 @@ -first +last same" in text
        assert "2 × failed: boom" in text

    def test_one_sample_of_a_task_is_followed_alone(
        self, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        text = run(capsys, "show", str(folder.path), "--task", "sum/1#1")
        assert "--- step 1 #1 +++ step 5 #1" in text
        assert "solved first" not in text
        assert "1 of 1 episodes" in run(capsys, "show", str(folder.path), "--task", "sum/1#1", "--step", "5")

    def test_a_task_that_came_once_has_nothing_to_be_compared_with(
        self, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        record(folder, 6, [episode(task="sum/2#x")])
        text = run(capsys, "show", str(folder.path), "--task", "sum/2#x")
        assert "step 6 alone has an answer of it, so there is nothing to compare" in text

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("--worst", "--best"), "--worst and --best exclude each other"),
            (("--task", "sum/11"), "no recorded episode is of task 'sum/11'; did you mean 'sum/1'?"),
            (("--task", "sum/9", "--step", "5"), "step 5 recorded no episode of task 'sum/9'"),
            (("--task", "sum/1", "--best"), "--task without --step shows every step"),
            (("--step", "3"), "recorded no episodes of step 3; there are: 1, 5"),
        ],
    )
    def test_what_is_not_there_is_said(
        self, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str], folder: RunFolder
    ) -> None:
        assert told in run(capsys, "show", str(folder.path), *words, status=2)

    def test_nothing_that_was_recorded_is_obeyed(self, folder: RunFolder) -> None:
        odd = replace(hostile_episode(), fork=Fork("\x1b[2J", "\x1b[2J"))
        record(folder, 7, [odd, replace(odd, status="failed", sample=1)])
        for words in ([], ["--task", odd.task.id], ["--failed"]):
            result = CliRunner().invoke(app, ["show", str(folder.path), *words])
            assert result.exit_code == 0, result.output
            assert "[red]markup[/red] [/] :smile: <script>" in result.output
            assert not any(one in result.output for one in OBEYED)

    def test_a_step_that_a_run_has_recorded_is_read(
        self, capsys: pytest.CaptureFixture[str], trained: RunFolder
    ) -> None:
        text = run(capsys, "show", str(trained.path), "--best", "--count", "1")
        assert "step 2: 1 of 4 episodes" in text
        assert "<|im_start|>" in text or "sees" in text
        assert re.search(r"actor sees \d+ tokens", text)


class TestTheParts:
    def test_the_answer_is_the_last_of_those_who_answer(self) -> None:
        one = episode(said="b")
        assert extract_answer(one, {"reasoner"}) == "the plan"
        assert extract_answer(one, set()) == "b"
        assert extract_answer(replace(one, actions=()), {"actor"}) == ""

    def test_episodes_that_were_not_scored_have_no_place_among_the_worst(self) -> None:
        episodes = [lost(0, "x"), episode(1, reward=2.0), episode(2, reward=-1.0)]
        assert [e.sample for e in sort_episodes(episodes, "worst")] == [2, 1]
        assert [e.sample for e in sort_episodes(episodes, "failed")] == [0]
        assert count_failure_reasons(episodes) == [("failed: x", 1)]

    def test_answers_that_are_alike_differ_in_nothing(self) -> None:
        assert diff_texts("a\nb", "a\nb", ("x", "y")) == []

    def test_a_recipe_that_cannot_be_read_names_nobody(self, tmp_path: Path) -> None:
        (tmp_path / "config.toml").write_text("name = ")
        recorded = PromptDecoder(tmp_path / "config.toml")
        assert recorded.answer_roles == set()
        assert recorded.decode_prompt(make_action()) is None

    def test_a_remote_agents_prompt_is_in_the_tokens_of_its_reader(self, folder: RunFolder) -> None:
        table = tomllib.loads(folder.config_path.read_text())
        table["models"]["far"] = {"path": "gpt-x", "endpoint": {"url": "http://127.0.0.1", "local_model": ""}}
        table["policies"]["reasoner"]["model"] = "far"
        folder.config_path.write_text(tomli_w.dumps(table))
        recorded = PromptDecoder(folder.config_path)
        for role in ("reasoner", "actor"):
            assert recorded.decode_prompt(make_action(role)) is not None
