"""Text that a teammate wrote inside an agent's own turn: recorded as such, read by all, trained where a recipe asks for it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.agents.play import play
from marft.common.token_data import TokenSource
from marft.common.types import Episode, Observation, Sample, Task, Transition
from marft.config.algorithm import TeammateTextSettings
from marft.config.interfaces.teammate_weight import TeammateWeight
from marft.inference.chat_messages import ChatFormat
from marft.inference.renderer import ChatRenderer
from marft.models.backbone import Backbone
from marft.rewards.shaping import penalize_overlong
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.batching import normalizer
from marft.trainer.critic import critic_input
from marft.trainer.loss import teammate_loss
from marft.trainer.micro_batch import TeammateText
from marft.trainer.teammate_weights import Bounded, Shaped, Truncated, Unweighted
from marft.trainer.train import train
from tests.episodes import make_action
from tests.fakes import FakeEngine, Script, ends, game
from tests.helpers import settings as recipe
from tests.marft.trainer.test_updates import (
    _log_probs,
    algorithm,
    assert_equal,
    double,
    gradients,
    packing,
    random_samples,
)
from tests.plugins import Continued

__all__ = ["double"]  # a fixture

NUMBER = st.floats(-3, 3, allow_nan=False)


def slow_ratio(log_prob: float, author: float) -> float:
    return math.exp(max(-20.0, min(20.0, log_prob - author)))


def slow_weight(weight: TeammateWeight, log_prob: float, author: float, advantage: float) -> float:
    """The weight of one token, by its formula."""
    if isinstance(weight, Truncated):  # LlamaRL
        return min(slow_ratio(log_prob, author), weight.cap)
    if isinstance(weight, Bounded):  # our reading of AIPO
        ratio = slow_ratio(log_prob, author)
        if advantage > 0:
            return min(max(ratio, weight.floor), weight.cap)
        return min(ratio, weight.cap) if ratio >= 1 - weight.clip else 0.0
    if isinstance(weight, Shaped):  # LUFFY: the derivative of p/(p + γ) by log p
        p, h = math.exp(log_prob), 1e-6
        up, down = (q / (q + weight.gamma) for q in (p * math.exp(h), p * math.exp(-h)))
        return (up - down) / (2 * h)
    return 1.0


WEIGHTS: list[TeammateWeight] = [
    Truncated(), Truncated(cap=0.7), Bounded(), Bounded(floor=0.0), Bounded(floor=1.5, cap=1.0), Bounded(clip=1.0), Shaped(),
    Shaped(gamma=2.0), Unweighted(),
]  # fmt: skip


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda w: f"{type(w).__name__}({w.model_dump()})")
@given(rows=st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0), NUMBER), min_size=1, max_size=6))
@settings(max_examples=50)
def test_weights_equal_the_slow_reference_and_have_no_gradient(
    weight: TeammateWeight, rows: list[tuple[float, float, float]]
) -> None:
    log_probs, author, advantages = (torch.tensor(c, dtype=torch.float64) for c in zip(*rows, strict=True))
    log_probs.requires_grad_()
    weights = weight.compute_weights(log_probs, author, advantages)  # type: ignore[attr-defined]
    assert not weights.requires_grad
    expected = [slow_weight(weight, *row) for row in rows]
    assert weights.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)


class Likelier(TeammateWeight):
    """A user's weight that forgets to detach."""

    def compute_weights(self, log_probs: torch.Tensor, author: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        return log_probs.exp()


def test_the_loss_takes_every_weight_as_a_constant() -> None:
    log_probs = torch.tensor([-0.5, -2.0], dtype=torch.float64, requires_grad=True)
    shares, advantages = torch.tensor([0.25, 0.75]), torch.tensor([1.0, -2.0])
    nothing = torch.zeros(2, dtype=torch.long)
    text = TeammateText(nothing, nothing, torch.ones(2), torch.tensor([-1.0, -1.0]), advantages, shares)
    settings = TeammateTextSettings.model_construct(coefficient=0.5, weight=Likelier())
    loss, weights = teammate_loss(settings, text, log_probs)
    loss.backward()
    assert not weights.requires_grad
    assert log_probs.grad is not None
    torch.testing.assert_close(log_probs.grad, (-0.5 * log_probs.exp() * advantages * shares).detach())


def test_what_was_good_is_learned_however_unlikely_it_was_and_what_was_bad_is_not_pushed_down_for_ever() -> None:
    """What AIPO is made against: a ratio alone lets no gradient through where the agent would hardly have written it."""
    log_probs, author = torch.tensor([-18.0, -18.0]), torch.tensor([-0.1, -0.1])
    good_and_bad = torch.tensor([1.0, -1.0])
    assert Truncated().compute_weights(log_probs, author, good_and_bad).max() < 1e-7
    good, bad = Bounded(floor=0.5).compute_weights(log_probs, author, good_and_bad).tolist()
    assert (good, bad) == (0.5, 0.0)


def test_what_the_agent_finds_as_likely_as_its_author_is_within_every_clip() -> None:
    same = torch.full((1,), -0.5)
    assert Bounded(clip=0.0).compute_weights(same, same, torch.tensor([-1.0])).tolist() == [1.0]


def test_by_their_names_alone_weights_are_the_published_ones() -> None:
    assert (Truncated().cap, Bounded().cap, Shaped().gamma) == (2.0, 2.0, 0.1)
    assert (Bounded().floor, Bounded().clip) == (0.5, 0.2)


class TestPlaying:
    def episode(self, *roles: str) -> tuple[Episode, FakeEngine]:
        engine = FakeEngine(lambda key, prompt: f"{key.agent}!")
        g = game(Script([ends()]), *roles, engine=engine, organization=Continued())
        return asyncio.run(play(g, Attempt(Task("t0", "begin"), "train/0"))), engine

    def test_a_turn_goes_on_from_a_teammates_text(self) -> None:
        episode, engine = self.episode("a", "bb")
        first, second = episode.actions
        assert (first.text, second.text) == ("a!", "a!bb!")
        assert bytes(second.tokens.astype(np.uint8)).decode() == "a!bb!"
        assert second.marks.tolist() == [TokenSource.TEAMMATE] * 2 + [TokenSource.SAMPLED] * 3
        assert len(second.log_probs) == 3
        assert second.teammate_log_probs is not None
        assert second.teammate_log_probs.tolist() == first.log_probs.tolist()
        assert second.sees == ("0/a/0",)
        assert engine.asked[1][1].endswith("a!")  # sampling went on from there

    def test_three_may_write_one_turn(self) -> None:
        episode, _ = self.episode("a", "bb", "c")
        last = episode.actions[-1]
        assert last.text == "a!bb!c!"
        assert last.teammate_mask.sum() == 5
        assert last.teammate_log_probs is not None
        first, second = episode.actions[:2]
        authors = [*first.log_probs.tolist(), *second.log_probs.tolist()]
        assert last.teammate_log_probs.tolist() == authors
        assert 0.0 not in authors
        assert last.sampled_mask.sum() == 2

    def test_the_end_of_the_teammates_turn_is_left_out(self, tiny_tokenizer: object) -> None:
        format = ChatFormat(tiny_tokenizer, 512, {}, stop_ids=(2,))  # type: ignore[arg-type]
        renderer = ChatRenderer({"a": format, "b": format})
        assert renderer.response_prefix("b", make_action("a", tokens=(9, 8, 2))) == 2
        assert renderer.response_prefix("b", make_action("a", tokens=(9, 2, 8))) == 3

    def test_other_tokenizers_cannot_go_on(self) -> None:
        class Words:
            def __init__(self, *words: str) -> None:
                self.words = words

            def get_vocab(self) -> dict[str, int]:
                return {word: number for number, word in enumerate(self.words)}

        renderer = ChatRenderer({"a": ChatFormat(Words("x"), 9, {}), "b": ChatFormat(Words("y"), 9, {})})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="their tokenizers differ; pass it on as a message"):
            renderer.response_prefix("b", make_action("a"))


def mixed(backbone: Backbone, level: str) -> list[Sample]:
    """Samples whose turns begin with, or hold, two tokens of a teammate."""
    samples = []
    for number, sample in enumerate(random_samples(backbone, level, count=5)):
        at = (0, len(sample.action.tokens) // 2, len(sample.action.tokens))[number % 3]
        action = replace(
            sample.action,
            tokens=np.insert(sample.action.tokens, at, [11, 12]),
            marks=np.insert(sample.action.marks, at, [TokenSource.TEAMMATE] * 2),
            teammate_log_probs=np.array([-0.5, -4.0], np.float32),
        )
        samples.append(replace(sample, action=action))
    return samples


@pytest.mark.parametrize(("level", "which"), [("action", 1), ("token", 1), ("token", 2), ("action", 6), ("token", 8)])
def test_the_loss_equals_the_slow_reference_however_it_is_cut(double: Backbone, level: str, which: int) -> None:
    samples = mixed(double, level)
    aggregation = "action-mean" if level == "action" else "token-mean"
    plain = packing(double, level, aggregation)
    trained = replace(plain, teammate_text=True)
    weight = WEIGHTS[which]
    kind = {Truncated: "truncated", Bounded: "bounded", Shaped: "shaped", Unweighted: "unweighted"}[type(weight)]
    table = {**weight.model_dump(), "name": kind}
    chosen = algorithm(level=level, teammate_text={"coefficient": 0.5, "weight": table})
    without, before = gradients(double, samples, plain, algorithm(level=level))
    whole, metrics = gradients(double, samples, trained, chosen)
    counts = {p: sum(2 for s in samples if s.action.policy == p) for p in ("one", "two")}
    expected = before["policy_loss"]
    for sample in samples:
        every = replace(sample.action, marks=np.zeros(len(sample.action.tokens), np.uint8))
        every = replace(every, log_probs=np.zeros(len(every.tokens), np.float32))
        scored = _log_probs(double, replace(sample, action=every))
        for place in np.flatnonzero(sample.action.teammate_mask):
            later = int(sample.action.sampled_mask[:place].sum())
            advantage = float(sample.advantages[min(later, len(sample.advantages) - 1)])
            author = -0.5 if sample.action.tokens[place] == 11 else -4.0
            term = -slow_weight(weight, scored[place], author, advantage) * advantage * scored[place]
            expected += 0.5 * term / counts[sample.action.policy]
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-6)
    assert any(not torch.equal(whole[name], without[name]) for name in whole)
    for tokens in (1, 13):
        assert_equal(whole, gradients(double, samples, replace(trained, tokens_per_batch=tokens), chosen)[0])


def test_the_value_of_an_action_is_read_where_the_agents_own_text_begins() -> None:
    action = make_action(
        prompt=(5, 6), tokens=(7, 8, 9), marks=(TokenSource.TEAMMATE, TokenSource.SAMPLED, TokenSource.SAMPLED)
    )
    read = critic_input(action, "action")
    assert (read.token_ids.tolist(), read.positions.tolist()) == ([5, 6, 7], [2])


def test_length_is_counted_and_priced_for_the_agents_own_text_alone() -> None:
    marks = (TokenSource.TEAMMATE,) * 8 + (TokenSource.SAMPLED,) * 4
    action = replace(
        make_action(tokens=tuple(range(12)), marks=marks, text="eight words that somebody else has written. mine"),
        response_prefix=len("eight words that somebody else has written."),
    )  # fmt: skip
    assert normalizer(action, "words") == 1.0
    assert normalizer(action, "tokens") == 4.0
    episode = Episode(Task("t", "o"), "s", 0, (action,), "terminated", (Transition(Observation("o"), 1.0),))
    assert penalize_overlong([episode], {"a": 8}, 2)[0].transitions[0].agent_rewards == {}


@pytest.mark.parametrize("level", ["action", "token"])
def test_a_team_that_writes_one_turn_together_trains(level: str, tmp_path: Path) -> None:
    run = recipe(
        "tiny", tmp_path, "--team.organization", "tests.plugins:Continued", "--algorithm.level", level,
        "--algorithm.teammate_text.coefficient", "1.0", "--agents.reasoner.sampling.max_new_tokens", "5",
    )  # fmt: skip
    folder = RunFolder.create(run)
    assert train(run, folder).step == 2
    actor = read_episodes(folder.episodes / "step_000001.parquet")[0].actions[1]
    assert actor.teammate_mask.sum() == 5
    assert actor.teammate_log_probs is not None
    rows = folder.read_metrics()
    assert all(math.isfinite(row["policy_loss"]) for row in rows)
    assert rows[0]["log_prob_difference_max"] < 1e-4
