"""The critic reads where it must: before the action, with the frozen base alone, each reading once."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from marft.common.types import Action, Episode, Observation, Task, Transition
from marft.config.algorithm import CriticSettings
from marft.config.interfaces.credit import CreditInputs, Level
from marft.models.backbone import Backbone
from marft.models.packed_rows import PackedRows
from marft.trainer.credit.gae import GAE
from marft.trainer.critic import Critic, CriticBody, CriticInput, critic_input, read_features
from marft.trainer.ranks.interface import SINGLE_RANK, SingleRank
from tests.draws import DrawnFrom
from tests.episodes import make_action
from tests.helpers import lengths_read


def episode(*actions: Action, reward: float = 1.0, **changes: object) -> Episode:
    whole = Episode(Task("t", "o"), "train/0", 0, actions, "terminated", (Transition(Observation("o"), reward),))
    return replace(whole, **changes)  # type: ignore[arg-type]


def critic(backbone: Backbone, level: Level = "action", **changes: object) -> Critic:
    made = Critic(
        CriticSettings.model_validate({"learning_rate": 0.01, **changes}), level, {"a": CriticBody("base", backbone), "b": CriticBody("base", backbone)}, [("a", "a"), ("b", "b")], seed=0, tokens_per_batch=1000,
    )  # fmt: skip
    with torch.no_grad(), DrawnFrom(0):  # the last layer starts at zero, where every reading looks alike
        for head in made.heads.values():
            torch.nn.init.normal_(head.layers[-1].weight)  # type: ignore[arg-type]
    return made


def test_an_untrained_critic_says_zero(backbone: Backbone) -> None:
    fresh = Critic(
        CriticSettings(), "action", {"a": CriticBody("base", backbone)}, [("a", "a")], seed=0, tokens_per_batch=1000
    )
    assert fresh.evaluate([episode(make_action("a"))]).actions[0].tolist() == [0.0]


def test_the_value_of_an_action_stands_at_the_last_token_before_it(backbone: Backbone) -> None:
    """Not at the first prompt token, where it would be the same for every state."""
    action = make_action("a", prompt=(5, 6, 7, 8))
    hidden = backbone.hidden_states(PackedRows.from_rows([action.prompt], [None], backbone.device))
    mine = critic(backbone)
    expected = mine.heads["base"](hidden[-1:]).item()
    assert mine.evaluate([episode(action)]).actions[0][0] == pytest.approx(expected, abs=1e-5)
    other = replace(action, prompt=np.array([5, 6, 7, 9], np.int32))
    assert mine.evaluate([episode(other)]).actions[0][0] != pytest.approx(expected, abs=1e-4)


def test_a_value_does_not_see_what_it_judges(backbone: Backbone) -> None:
    """Changing token j of an action leaves the values of tokens up to j as they are, and moves the next one."""
    mine = critic(backbone, "token")
    before = mine.evaluate([episode(make_action("a", tokens=(8, 9, 10, 11)))]).actions[0]
    after = mine.evaluate([episode(make_action("a", tokens=(8, 50, 10, 11)))]).actions[0]
    np.testing.assert_allclose(before[:2], after[:2], atol=1e-6)
    assert abs(before[2] - after[2]) > 1e-4
    at_action_level = critic(backbone, "action")
    a = at_action_level.evaluate([episode(make_action("a", tokens=(8, 9)))]).actions[0]
    b = at_action_level.evaluate([episode(make_action("a", tokens=(50, 51)))]).actions[0]
    assert a.tolist() == b.tolist()


def test_token_values_stand_where_the_sampled_tokens_are_predicted() -> None:
    action = make_action("a", prompt=(1, 2, 3), tokens=(4, 5, 6, 7), marks=(0, 1, 0, 0))
    read = critic_input(action, "token")
    assert read.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert read.positions.tolist() == [2, 4, 5]


def test_the_state_is_read_where_it_says_more_than_the_prompt() -> None:
    action = replace(make_action("a", prompt=(1, 2)), state=np.array([1, 2, 9], np.int32))
    assert critic_input(action, "action").token_ids.tolist() == [1, 2, 9]
    assert critic_input(action, "token").positions.tolist() == [2, 3]


def test_adapters_do_not_touch_the_critics_features(backbone: Backbone) -> None:
    reads = [CriticInput(np.array([4, 5, 6], np.int32), np.array([0, 2]))]
    before = read_features(backbone, reads, 100, None)
    backbone.add_adapter("a", 4, 16.0, ("q_proj", "v_proj"), seed=0)
    for adapter in backbone.adapters("a").values():
        torch.nn.init.normal_(adapter.b)
    assert torch.equal(read_features(backbone, reads, 100, None), before)


def test_equal_readings_are_computed_once_and_all_get_their_rows(backbone: Backbone) -> None:
    reads = [
        CriticInput(np.array([4, 5, 6], np.int32), np.array([2])),
        CriticInput(np.array([7, 8], np.int32), np.array([0, 1])),
        CriticInput(np.array([4, 5, 6], np.int32), np.array([0, 2])),
    ]
    forwarded = lengths_read(backbone)
    features = read_features(backbone, reads, 1000, None)
    assert sum(forwarded) == 5
    alone = torch.cat([read_features(backbone, [read], 1000, None) for read in reads])
    torch.testing.assert_close(features, alone, rtol=1e-5, atol=1e-5)


def test_only_truncated_episodes_have_a_bootstrap_value(backbone: Backbone) -> None:
    mine = critic(backbone)
    ended = episode(make_action("a"))
    cut = episode(make_action("a"), status="truncated", bootstrap={"a": np.array([3, 4], np.int32)})
    values = mine.evaluate([ended, cut])
    assert values.bootstrap[0] == {}
    assert values.final_value(0) == 0.0
    assert values.final_value(1) == values.bootstrap[1]["a"] != 0.0


@pytest.mark.parametrize("heads", ["agent", "team"])
def test_every_agent_bootstraps_from_the_end_as_it_sees_it_itself(heads: str, backbone: Backbone) -> None:
    """Also under one shared head, as MAPPO has it: agents may be paid for different things."""
    ends = {"b": np.array([3, 4], np.int32), "a": np.array([7, 8, 9], np.int32)}
    batch = [episode(make_action("b"), make_action("a", index=1), status="truncated", bootstrap=ends, reward=0.0)]
    mine = critic(backbone, heads=heads)
    features = read_features(backbone, [CriticInput(ids, np.array([len(ids) - 1])) for ids in ends.values()], 99, None)
    with torch.no_grad():
        expected = {
            name: mine.heads[f"base/{name}" if heads == "agent" else "base"](features[i : i + 1]).item()
            for i, name in enumerate(ends)
        }
    values = mine.evaluate(batch)
    assert values.bootstrap[0] == pytest.approx(expected, abs=1e-5)
    assert list(values.bootstrap[0]) == ["b", "a"]  # who decided first comes first
    assert expected["a"] != pytest.approx(expected["b"], abs=1e-2)
    for chain, ahead in (("agent", ["b", "a"]), ("joint", ["b", "b"])):
        gae = GAE(successor=chain, gamma_step=0.5, lambda_step=1.0, lambda_agent=1.0)  # type: ignore[arg-type]
        returns = gae.assign(CreditInputs(batch, "action", values)).returns
        assert [float(r[0]) for r in returns] == pytest.approx([0.5 * expected[name] for name in ahead], abs=1e-5)


def test_agents_with_heads_of_their_own_bootstrap_from_them(backbone: Backbone) -> None:
    """Heads that say +10 and −10 make returns of 0.1 + 0.99 · (±10), whoever decided first."""
    mine = critic(backbone, kind="independent", heads="agent")
    with torch.no_grad():
        for agent, value in (("a", 10.0), ("b", -10.0)):
            mine.heads[f"base/{agent}"].layers[-1].weight.zero_()  # type: ignore[union-attr, operator]
            mine.heads[f"base/{agent}"].layers[-1].bias.fill_(value)  # type: ignore[union-attr, operator]
    ends = {"a": np.array([3, 4], np.int32), "b": np.array([3, 5], np.int32)}
    cut = episode(make_action("a"), make_action("b", index=1), status="truncated", bootstrap=ends, reward=0.1)
    values = mine.evaluate([cut])
    for chain, expected in (("agent", [10.0, -9.8]), ("graph", [10.0, -9.8]), ("joint", [10.0, 10.0])):
        gae = GAE(successor=chain, gamma_step=0.99, lambda_step=1.0, lambda_agent=1.0)  # type: ignore[arg-type]
        returns = gae.assign(CreditInputs([cut], "action", values)).returns
        assert [float(r[0]) for r in returns] == pytest.approx(expected)


def test_features_are_computed_once_for_all_epochs(backbone: Backbone) -> None:
    mine = critic(backbone, epochs=5, minibatches=2)
    batch = [episode(make_action("a", prompt=(5, n))) for n in range(3, 9)]
    values = mine.evaluate(batch)
    backbone.hidden_states = None  # type: ignore[assignment]  # no forward may follow
    returns = [np.array([float(n)]) for n in range(6)]
    mine.update(values, returns, step=0)


def test_fitting_lowers_the_loss_and_explains_the_returns(backbone: Backbone) -> None:
    mine = critic(backbone, epochs=60, value_clip=0.0)
    batch = [episode(make_action("a", prompt=(5, n))) for n in range(3, 19)]
    returns = [np.array([float(n % 2)]) for n in range(16)]
    first = mine.update(mine.evaluate(batch), returns, step=0)
    second = mine.update(mine.evaluate(batch), returns, step=1)
    assert second["critic/loss"] < first["critic/loss"]
    assert second["critic/explained_variance"] > 0.8


def test_heads_of_different_bases_keep_their_own_decisions_apart(backbone: Backbone) -> None:
    mine = Critic(
        CriticSettings(),
        "action",
        {"a": CriticBody("first", backbone), "b": CriticBody("second", backbone)},
        [("a", "a"), ("b", "b")],
        seed=0,
        tokens_per_batch=99,
    )
    with torch.no_grad():
        for value, name in ((1.0, "first"), (2.0, "second")):
            mine.heads[name].layers[-1].bias.fill_(value)  # type: ignore[union-attr, operator]
    values = mine.evaluate([episode(make_action("a"), make_action("b", index=1)), episode(make_action("b"))])
    assert [float(v[0]) for v in values.actions] == [1.0, 2.0, 2.0]
    assert [len(decisions.rows) for decisions in mine._decisions] == [1, 2]


def test_every_agent_may_have_a_head_of_its_own(backbone: Backbone) -> None:
    mine = Critic(
        CriticSettings(heads="agent"), "action", {"a": CriticBody("base", backbone), "b": CriticBody("base", backbone)},
        [("a", "a"), ("b", "b")], seed=0, tokens_per_batch=1000,
    )  # fmt: skip
    assert sorted(mine.heads) == ["base/a", "base/b"]
    batch = [episode(make_action("a"), make_action("b", index=1))]
    mine.update(mine.evaluate(batch), [np.array([2.0]), np.array([-2.0])], step=0)
    after = mine.evaluate(batch)
    assert after.actions[0] > 0
    assert after.actions[1] < 0


def test_an_independent_critic_reads_only_what_the_agent_sees() -> None:
    action = replace(make_action("a", prompt=(5, 6)), state=np.array([5, 9, 9, 6], np.int32))
    assert critic_input(action, "action", "independent").token_ids.tolist() == [5, 6]
    assert critic_input(action, "action", "centralized").token_ids.tolist() == [5, 9, 9, 6]


@pytest.mark.parametrize("tokens", [7, 1000])
def test_a_critic_with_an_adapter_of_its_own_learns_and_leaves_the_base_alone(backbone: Backbone, tokens: int) -> None:
    """Also where its readings do not fit in one batch: the gradient is the same."""
    mine = Critic(
        CriticSettings(body="lora", epochs=10, lora_learning_rate=0.01), "action", {"a": CriticBody("base", backbone)},
        [("a", "a")], seed=0, tokens_per_batch=tokens,
    )  # fmt: skip
    batch = [episode(make_action("a", prompt=(5, n))) for n in range(3, 11)]
    plain = read_features(backbone, [critic_input(e.actions[0], "action") for e in batch], 1000, None)
    returns = [np.array([float(n % 2)]) for n in range(8)]
    first = mine.update(mine.evaluate(batch), returns, step=0)
    second = mine.update(mine.evaluate(batch), returns, step=1)
    assert second["critic/loss"] < first["critic/loss"]
    assert all(parameter.abs().sum() > 0 for name, parameter in mine.parameters().items() if "lora_B" in name)
    again = read_features(backbone, [critic_input(e.actions[0], "action") for e in batch], 1000, None)
    assert torch.equal(again, plain)


def test_readings_that_do_not_fit_in_one_batch_are_learned_from_as_if_they_did(backbone: Backbone) -> None:
    """Each minibatch takes its own decisions out of every batch, with their own returns."""
    batch = [episode(make_action("a", prompt=(5, *range(6, 6 + n % 3), n))) for n in range(3, 11)]
    after = []
    for tokens in (7, 1000):
        mine = Critic(
            CriticSettings(body="lora", minibatches=2, lora_learning_rate=0.01), "token", {"a": CriticBody("base", deepcopy(backbone))}, [("a", "a")], seed=0, tokens_per_batch=tokens,
        )  # fmt: skip
        values = mine.evaluate(batch)
        mine.update(values, [row + n for n, row in enumerate(values.actions)], step=0)
        after.append(np.concatenate(mine.evaluate(batch).actions))
    np.testing.assert_allclose(after[0], after[1], rtol=1e-4, atol=1e-6)
    assert np.abs(after[0]).max() > 0.01


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted(backbone: Backbone) -> None:
    mine = critic(backbone, epochs=2)
    batch = [episode(make_action("a", prompt=(5, n))) for n in range(3, 7)]
    before = {name: parameter.detach().clone() for name, parameter in mine.parameters().items()}
    values = mine.evaluate(batch)
    metrics = mine.update(values, [np.array([x]) for x in (1.0, float("nan"), 0.0, 1.0)], step=0)
    assert metrics["critic/skipped_updates"] == 1.0
    assert all(torch.equal(parameter, before[name]) for name, parameter in mine.parameters().items())
    assert not mine.optimizer.state
    assert mine.update(values, [np.array([1.0])] * 4, step=1)["critic/skipped_updates"] == 0.0
    assert any(not torch.equal(parameter, before[name]) for name, parameter in mine.parameters().items())


class TestCheckpoints:
    def test_saved_tensors_have_no_gradient(self, backbone: Backbone) -> None:
        assert not any(tensor.requires_grad for tensor in critic(backbone).state_dict().values())

    @pytest.mark.parametrize("change", ["a name", "a shape"])
    def test_another_critics_are_not_loaded(self, change: str, backbone: Backbone) -> None:
        mine = critic(backbone)
        before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
        name, *_ = before
        others = {key: tensor + 1 for key, tensor in before.items()}
        others |= {"new": torch.zeros(1)} if change == "a name" else {name: torch.zeros(1, 1)}
        assert mine.load_state_dict(others) is False
        assert all(torch.equal(tensor, before[key]) for key, tensor in mine.state_dict().items())


class TestSeveralRanks:
    class BusyPeer(SingleRank):
        """One that has all of the batch, beside one that has one more thing to read each time."""

        def gather(self, value: Any) -> list[Any]:
            return [value, value + 1] if isinstance(value, int) else [value]

    class Elsewhere(SingleRank):
        """A rank that has none of the bases."""

        def on(self, base: str) -> Any:
            return None

    def learned(self, backbone: Backbone, ranks: SingleRank) -> tuple[dict[str, torch.Tensor], float]:
        """Gradients of an update, and its loss; both agents have a head of their own, on one trained body."""
        mine = Critic(
            CriticSettings(body="lora", heads="agent"), "action",
            {name: CriticBody("base", backbone) for name in "ab"}, [("a", "a"), ("b", "b")], seed=0,
            tokens_per_batch=1000, ranks=ranks,
        )  # fmt: skip
        with torch.no_grad(), DrawnFrom(0):
            for head in mine.heads.values():
                torch.nn.init.normal_(head.layers[-1].weight)  # type: ignore[arg-type]
        batch = [episode(make_action("a", prompt=(5, n)), make_action("b", prompt=(6, n), index=1)) for n in (3, 4)]
        metrics = mine.update(mine.evaluate(batch), [np.array([float(n)]) for n in range(4)], step=0)
        gradients = {name: p.grad for name, p in mine.parameters().items() if p.grad is not None}
        return gradients, metrics["critic/loss"]

    def test_idle_passes_go_forward_and_backward_and_teach_nothing(self, backbone: Backbone) -> None:
        expected, loss = self.learned(deepcopy(backbone), SINGLE_RANK)
        forward, original = [], backbone.hidden_states
        backward: list[torch.Tensor] = []

        def watched(rows: PackedRows) -> torch.Tensor:
            hidden = original(rows)
            if hidden.requires_grad:
                forward.append(len(hidden))
                hidden.register_hook(backward.append)
            return hidden

        backbone.hidden_states = watched  # type: ignore[method-assign, assignment]
        gradients, mine = self.learned(backbone, self.BusyPeer())
        assert mine == loss
        assert gradients.keys() == expected.keys()
        assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients.items())
        assert forward == [4, 1] * 2 * CriticSettings().epochs, "of each head the two readings, and one idle token"
        assert [bool(gradient.any()) for gradient in backward] == [True, False] * 2 * CriticSettings().epochs

    def test_a_rank_without_the_base_reads_nothing_and_adds_nothing(self, backbone: Backbone) -> None:
        read = lengths_read(backbone)
        mine = Critic(
            CriticSettings(), "action", {"a": CriticBody("base", backbone)}, [("a", "a")], seed=0, tokens_per_batch=99,
            ranks=self.Elsewhere(),
        )  # fmt: skip
        cut = episode(make_action("a"), status="truncated", bootstrap={"a": np.array([3, 4], np.int32)})
        values = mine.evaluate([cut])
        assert [row.tolist() for row in values.actions] == [[0.0]]
        assert values.bootstrap == [{"a": 0.0}]
        assert mine.update(values, [np.array([1.0])], step=0)["critic/loss"] == 0.0
        assert read == []
