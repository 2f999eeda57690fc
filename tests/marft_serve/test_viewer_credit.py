"""What the viewer tells of credit: of each token, and of a step as a whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs pip install 'marft[viewer]'")

from marft.common.types import ActionCredit, Choice, Observation, Option, Transition
from marft.runs.credit_files import write_credit
from marft.runs.episode_files import read_episodes
from marft_serve.viewer.episode_view import MAX_TOKENS, build_token_table, decode_tokens, spread_values
from tests.episodes import make_action
from tests.views import asked, attempt, client, forked, make_run, record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "one")


class TestTokens:
    def test_each_has_its_text_and_what_was_recorded_of_it(self, run: Path) -> None:
        episodes = read_episodes(run / "episodes" / "step_000001.parquet")
        rows = [
            ActionCredit(e, a, "g", np.ones(1), np.array([0.5]), None, np.arange(len(a.tokens)) / 4, None, 1.0)
            for e in episodes
            for a in e.actions
        ]
        write_credit(run / "credit" / "step_000001.parquet", rows)
        mine = client(run)
        said = asked(mine, "runs/one/episodes/1/0/tokens", action="0/reasoner/0")
        assert (len(said["tokens"]), said["marks"]) == (2, ["sampled"] * 2)
        assert (said["advantage"], said["entropy"], said["value"]) == ([0.5, 0.5], [0.0, 0.25], None)
        whole = asked(mine, "runs/one/episodes/1/0")["actions"][0]
        assert (whole["advantage"], whole["entropy"], whole["difference"]) == (0.5, 0.125, None)
        audit = asked(mine, "runs/one/credit", step=1)
        assert (audit["recorded"], len(audit["groups"][0]["episodes"]), audit["zero_share"]) == (True, 4, 0.0)
        assert sum(audit["advantages"]["actor"]["counts"]) == 4
        assert audit["zero_advantages"] == 0.0
        write_credit(
            run / "credit" / "step_000001.parquet", [replace(row, advantages=np.zeros(1)) for row in rows[::2]]
        )
        assert asked(client(run), "runs/one/credit", step=1)["zero_advantages"] == 1.0
        assert asked(mine, "runs/one/credit", step=2)["recorded"] is False

    def test_texts_are_what_the_decoder_says_of_a_token_after_the_one_before_it(self) -> None:
        class Words:
            """Drops the space before the first word, as some tokenizers do, and special tokens where it is told to."""

            words: ClassVar = {1: " one", 2: " two", 9: "<end>"}

            def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
                said = (self.words[number] for number in ids if number != 9 or not skip_special_tokens)
                return "".join(said).removeprefix(" ")

        assert decode_tokens(Words(), [1, 2, 9, 1, 2]) == ["one", " two", "<end>", " one", " two"]

    def test_what_is_no_character_at_all_is_shown_where_it_stands(self) -> None:
        class Bytes:
            def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
                return bytes(ids).decode("utf-8", "replace")

        assert decode_tokens(Bytes(), [*b"a", 0xF0]) == ["a", "\ufffd"]
        texts = decode_tokens(Bytes(), [0x80] * 20)
        assert texts[7], "who waits for more than eight tokens waits for nothing"
        assert "".join(texts) == "\ufffd" * 20

    def test_of_an_endless_action_the_beginning_is_shown_and_the_rest_counted(self) -> None:
        action = make_action(tokens=(7,) * (MAX_TOKENS + 3))
        said = build_token_table(action, None, {"advantage": [0.5], "entropy": []})
        assert {
            name: len(said[name]) for name in ("tokens", "marks", "log_prob", "advantage", "entropy")
        } == dict.fromkeys(("tokens", "marks", "log_prob", "advantage", "entropy"), MAX_TOKENS)
        assert (said["left_out"], said["tokens"][0], said["value"]) == (3, "⟨7⟩", None)
        assert build_token_table(make_action(), None, {})["left_out"] == 0

    def test_a_token_of_a_mark_that_nobody_knows_is_one_that_was_given(self) -> None:
        assert build_token_table(make_action(marks=(0, 77), log_probs=(-1.0,)), None, {})["marks"] == [
            "sampled",
            "tool",
        ]

    def test_a_token_that_a_grammar_forced_is_the_agents_own_and_decided_nothing(self) -> None:
        action = make_action(tokens=(1, 2, 3, 4), marks=(0, 3, 0, 1), log_probs=(-1.0, -2.0))
        assert spread_values(action, action.log_probs) == [-1.0, None, -2.0, None]
        assert spread_values(action, np.array([0.5])) == [0.5, 0.5, 0.5, None]

    def test_a_character_of_several_tokens_belongs_to_its_last_one(self) -> None:
        class Bytes:
            def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
                return bytes(ids).decode("utf-8", "replace")

        ids = list("aπ🙂!".encode())
        assert decode_tokens(Bytes(), ids) == ["a", "", "π", "", "", "", "🙂", "!"]
        assert "".join(decode_tokens(Bytes(), [0xF0, 0x9F, *b"ok"])).endswith("ok")

    def test_numbers_stand_where_the_agent_decided(self) -> None:
        action = make_action(tokens=(1, 2, 3), marks=(0, 1, 0), log_probs=(-1.0, -2.0))
        assert spread_values(action, action.log_probs) == [-1.0, None, -2.0]
        assert spread_values(action, np.array([0.5])) == [0.5, None, 0.5]
        chosen = Choice((Option(np.array([1, 2, 3], np.int32)),), 0, np.zeros(1, np.float32))
        assert spread_values(replace(action, choice=chosen), np.array([-0.5])) == [-0.5, None, -0.5]


class TestTheCreditAudit:
    @pytest.fixture
    def audited(self, run: Path) -> Path:
        """A step with two attempts each at two tasks, one alone at a third, a fork and a failure."""
        same = Transition(Observation(""), 0.25)
        record(run, 4, [
            attempt(4, 0), attempt(4, 1), attempt(4, 2, transitions=(same,)),
            attempt(4, 3, transitions=(replace(same, reward=0.25 + 1e-10),)), attempt(4, 4, status="paused"),
            forked(4, 1), attempt(4, 5, actions=(), status="failed", error="boom", transitions=(), success=None),
        ], **{"agents/actor/gradient_share": 0.75, "agents/reasoner/gradient_share": None})  # fmt: skip
        return run

    def test_where_nothing_was_recorded_the_scored_attempts_at_each_task_are_the_groups(self, audited: Path) -> None:
        said = asked(client(audited), "runs/one/credit", step=4)
        groups = {group["key"]: group for group in said["groups"]}
        assert {key: group["episodes"] for key, group in groups.items()} == {
            "t/0": [[4, 0], [4, 1]], "t/1": [[4, 2], [4, 3]], "t/2": [[4, 4]],
        }  # fmt: skip
        assert [(groups[key]["mean"], groups[key]["zero"]) for key in ("t/0", "t/1", "t/2")] == [
            (0.5, False), (pytest.approx(0.25), True), (4.0, True),
        ]  # fmt: skip
        assert groups["t/0"]["std"] == pytest.approx(0.5**0.5)
        assert groups["t/2"]["std"] == 0.0
        assert said["zero_share"] == pytest.approx(2 / 3)
        assert (said["gradient_share"], said["bytes"], said["advantages"]) == ({"actor": 0.75}, 0, {})

    def test_small_differences_of_rewards_are_differences(self, audited: Path) -> None:
        close = [attempt(5, n, transitions=(Transition(Observation(""), 0.1 * n * n),)) for n in range(2)]
        record(audited, 5, close)
        (group,) = asked(client(audited), "runs/one/credit", step=5)["groups"]
        assert group["zero"] is False

    def test_of_a_step_that_is_logged_again_the_last_row_counts_and_none_of_another_step(self, audited: Path) -> None:
        with (audited / "metrics.jsonl").open("a") as log:
            log.write(json.dumps({"step": 4, "agents/actor/gradient_share": 0.5}) + "\n")
            log.write(json.dumps({"step": 5, "agents/actor/gradient_share": 0.1}) + "\n")
        assert asked(client(audited), "runs/one/credit", step=4)["gradient_share"] == {"actor": 0.5}

    def test_groups_are_those_recorded_and_advantages_lie_around_0(self, audited: Path) -> None:
        episodes = read_episodes(audited / "episodes" / "step_000004.parquet")
        stranger = replace(episodes[0], stream="train/99")
        numbers = iter([1.0, -3.0, np.nan, 2.0, 0.0])
        path = audited / "credit" / "step_000004.parquet"
        write_credit(path, [
            ActionCredit(e, e.actions[1], key, np.zeros(1), np.array([next(numbers)]), None, None, None, 1.0)
            for e, key in zip([*episodes[:4], stranger], ["g", "g", "g", "", "gone"], strict=True)
        ])  # fmt: skip
        said = asked(client(audited), "runs/one/credit", step=4)
        (group,) = said["groups"]
        assert (group["key"], group["episodes"], group["rewards"]) == ("g", [[4, 0], [4, 1], [4, 2]], [0.0, 1.0, 0.25])
        assert group["mean"] == pytest.approx(1.25 / 3)
        assert said["bytes"] == path.stat().st_size
        edges, counts = said["advantages"]["actor"]["edges"], said["advantages"]["actor"]["counts"]
        assert (edges[0], edges[-1]) == (-3.0, 3.0)
        assert (sum(counts), counts[0], counts[len(counts) // 2]) == (4, 1, 1)

    def test_advantages_that_are_all_0_stand_in_the_middle(self, audited: Path) -> None:
        (episode, *_) = read_episodes(audited / "episodes" / "step_000004.parquet")
        nothing = ActionCredit(episode, episode.actions[0], "", np.zeros(1), np.zeros(1), None, None, None, 0.0)
        write_credit(audited / "credit" / "step_000004.parquet", [nothing])
        said = asked(client(audited), "runs/one/credit", step=4)["advantages"]["reasoner"]
        assert (said["edges"][0], said["edges"][-1]) == (-1.0, 1.0)
        assert said["counts"][len(said["counts"]) // 2] == sum(said["counts"]) == 1
