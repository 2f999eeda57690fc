"""Log-probs over the tokens that a grammar allows for: values, gradients, entropies, and which tokens count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marft.agents.agents import Agent
from marft.agents.generation import ActionBuilder, ResponsePrefix, build_response_prefix
from marft.common.token_data import GrammarMasks, PromptReset, TokenSource, allows_single_token, single_token_mask
from marft.common.types import Action, AgentProfile, Completion, Episode, Prompt, Task
from marft.config.interfaces.credit import CreditOutput
from marft.models import log_probs
from marft.models.log_probs import IDENTITY, LogitTransform, OutputHead, PackedMasks, score_tokens, unpack_masks
from marft.trainer.batching import make_samples
from marft.trainer.micro_batch import scored_tokens
from tests.episodes import make_action

TOKENS, VOCABULARY = 23, 50
SHAPES = {"plain": IDENTITY, "scaled": LogitTransform(0.25), "capped": LogitTransform(1.5, 4.0)}


def packed(tokens: list[int]) -> bytes:
    bits = np.zeros(VOCABULARY, np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").tobytes()


class Problem:
    """Random heads, and masks of every other token."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random = np.random.default_rng(0)
        self.hidden = torch.randn(TOKENS, 8, dtype=torch.float64)
        self.weight = torch.randn(VOCABULARY, 8, dtype=torch.float64)
        self.bias = torch.randn(VOCABULARY, dtype=torch.float64)
        self.temperatures = torch.rand(TOKENS, dtype=torch.float64) + 0.5
        self.targets = torch.randint(0, VOCABULARY, (TOKENS,))
        self.allowed = np.ones((TOKENS, VOCABULARY), bool)
        at = list(range(0, TOKENS, 2))
        for place in at:
            self.allowed[place] = random.random(VOCABULARY) < 0.3
            self.allowed[place, self.targets[place]] = True
        some = GrammarMasks.from_masks(at, [packed(np.flatnonzero(self.allowed[place]).tolist()) for place in at])
        self.masks = PackedMasks.from_parts([(some, some.mask_indices(TOKENS))], torch.device("cpu"))

    def reference(self, h: Tensor, w: Tensor, shape: LogitTransform) -> tuple[Tensor, Tensor]:
        """Token by token, over the tokens that are allowed, as if there were no others."""
        scores, entropies = [], []
        for t in range(TOKENS):
            ids = np.flatnonzero(self.allowed[t])
            logits = (w[ids] @ h[t] + self.bias[ids]) * shape.scale
            logits = logits if shape.softcap is None else shape.softcap * torch.tanh(logits / shape.softcap)
            log_p = (logits / self.temperatures[t]).log_softmax(-1)
            scores.append(log_p[ids.tolist().index(int(self.targets[t]))])
            entropies.append(-(log_p.exp() * log_p).sum())
        return torch.stack(scores), torch.stack(entropies)

    def mine(self, h: Tensor, w: Tensor, shape: LogitTransform) -> tuple[Tensor, Tensor]:
        return score_tokens(
            h, OutputHead(w, self.bias, shape), self.targets, self.temperatures, entropy_gradient=True, masks=self.masks
        )


@pytest.mark.parametrize("chunk", [50, 7 * 50, 10**6])
@pytest.mark.parametrize("trained_head", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_and_gradients_equal_a_softmax_over_what_is_allowed(
    chunk: int, trained_head: bool, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(log_probs, "MIN_CHUNK_ROWS", 1)
    problem = Problem()
    upstream, entropy_upstream = torch.randn(2, TOKENS, dtype=torch.float64)
    found = []
    for function in (problem.reference, problem.mine):
        h, w = problem.hidden.clone().requires_grad_(), problem.weight.clone().requires_grad_(trained_head)
        scores, entropies = function(h, w, SHAPES[shape])
        (scores * upstream + entropies * entropy_upstream).sum().backward()
        found.append((scores.detach(), entropies.detach(), h.grad, w.grad))
    for expected, mine in zip(*found, strict=True):
        if expected is not None:
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-10)


def test_tokens_that_are_not_allowed_get_no_gradient() -> None:
    problem = Problem()
    weight = problem.weight.clone().requires_grad_()
    scores, entropies = problem.mine(problem.hidden, weight, IDENTITY)
    (scores[0] + entropies[0]).backward()
    assert weight.grad is not None
    moved = weight.grad.abs().sum(1).numpy() > 0
    assert np.array_equal(moved, problem.allowed[0])


def test_tokens_without_a_mask_score_to_the_bit_as_where_nobody_has_one() -> None:
    problem = Problem()
    head = OutputHead(problem.weight, problem.bias)
    plain = score_tokens(problem.hidden, head, problem.targets, problem.temperatures)
    mine = problem.mine(problem.hidden, problem.weight, IDENTITY)
    assert torch.equal(mine[0][1::2], plain.log_probs[1::2])
    assert torch.equal(mine[1][1::2], plain.entropies[1::2])
    assert not torch.isclose(mine[0][::2], plain.log_probs[::2]).any()


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), max_size=6), st.integers(1, 60))
def test_masks_are_packed_and_unpacked(sets: list[set[int]], vocabulary: int) -> None:
    masks = GrammarMasks.from_masks(range(len(sets)), [packed(sorted(tokens)) for tokens in sets])
    found = PackedMasks.from_parts(
        [(None, np.array([-1])), (masks, masks.mask_indices(len(sets)))], torch.device("cpu")
    )
    if not sets:
        assert found is None
        return
    assert found is not None
    assert int(found.indices[0]) == -1
    table = unpack_masks(found.table[found.indices[1:]], vocabulary)
    assert [set(np.flatnonzero(row)) for row in table.numpy()] == [
        {t for t in tokens if t < vocabulary} for tokens in sets
    ]


def test_masks_of_several_actions_are_in_one_table_and_keep_their_own() -> None:
    a, b = single_token_mask(3), single_token_mask(9)
    one, other = GrammarMasks.from_masks([0, 1], [a, b]), GrammarMasks.from_masks([0, 2], [b, a])
    found = PackedMasks.from_parts([(one, one.mask_indices(2)), (other, other.mask_indices(3))], torch.device("cpu"))
    assert found is not None
    assert found.indices.tolist() == [0, 1, 1, -1, 0]
    assert [np.flatnonzero(row).tolist() for row in unpack_masks(found.table, 16).numpy()] == [[3], [9]]


def masked(tokens: tuple[int, ...], marks: list[TokenSource], masks: GrammarMasks) -> Action:
    action = make_action("actor", tokens=tokens)
    marked = np.array(marks, np.uint8)
    return replace(action, marks=marked, masks=masks, log_probs=np.zeros(int((marked == 0).sum()), np.float32))


def test_forced_tokens_are_the_agents_own_and_no_decisions() -> None:
    marks = [TokenSource.FORCED, TokenSource.SAMPLED, TokenSource.FORCED, TokenSource.SAMPLED]
    action = masked((4, 5, 6, 2), marks, GrammarMasks.from_masks([1, 3], [b"\x60", b"\x14"]))
    assert (action.num_decisions, action.sampled_mask.tolist()) == (2, [False, True, False, True])
    assert action.own_mask.all()
    (said,) = scored_tokens(action)
    assert (said.scored.tolist(), said.masks.tolist()) == ([False, True, False, True], [-1, 0, -1, 1])


def test_masks_follow_their_tokens_into_segments() -> None:
    action = masked((4, 5, 6, 2), [TokenSource.SAMPLED] * 4, GrammarMasks.from_masks([1, 3], [b"\x60", b"\x14"]))
    action = replace(action, restarts=(PromptReset(2, np.array([7], np.int32), 1, "rewritten"),))
    assert [said.masks.tolist() for said in scored_tokens(action)] == [[-1, 0], [-1, 1]]


def test_an_action_in_which_nothing_was_left_to_decide_is_not_trained() -> None:
    settled = masked(
        (4, 2), [TokenSource.FORCED, TokenSource.SAMPLED], GrammarMasks.from_masks([1], [single_token_mask(2)])
    )
    free = masked((4, 2), [TokenSource.FORCED, TokenSource.SAMPLED], GrammarMasks.from_masks([1], [b"\x06"]))
    assert (settled.is_forced, free.is_forced, make_action("actor").is_forced) == (True, False, False)
    episode = Episode(Task("t", "o"), "train/0", 0, (settled, free), "terminated")
    samples, _ = make_samples([episode], CreditOutput([np.ones(1), np.ones(1)]), ["actor"], "none", False)
    assert [sample.action for sample in samples] == [free]


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_mask_of_one_token_is_told_from_one_of_more(token: int, other: int) -> None:
    both = bytes(
        a | b
        for a, b in zip(
            single_token_mask(token).ljust(30, b"\0"), single_token_mask(other).ljust(30, b"\0"), strict=True
        )
    )
    assert allows_single_token(single_token_mask(token))
    assert allows_single_token(both) == (token == other)


def test_what_a_teammate_was_forced_to_write_is_its_text_with_certainty() -> None:
    class AsTheyAre:
        def response_prefix(self, policy: str, other: Action) -> int:
            return len(other.tokens)

    marks = [TokenSource.FORCED, TokenSource.SAMPLED, TokenSource.FORCED]
    author = replace(
        masked((4, 5, 6), marks, GrammarMasks.from_masks([1], [b"\x60"])), log_probs=np.array([-0.5], np.float32)
    )
    prefix = build_response_prefix(AsTheyAre(), "p", author)  # type: ignore[arg-type]
    assert prefix.marks.tolist() == [TokenSource.TEAMMATE] * 3
    assert prefix.log_probs.tolist() == [0.0, -0.5, 0.0]


AGENT = Agent(AgentProfile("actor"), "p")


class TestDrafts:
    def said(self, *turns: Completion) -> Action:
        draft = ActionBuilder(Prompt(np.array([7], np.int32)), ResponsePrefix())
        for turn in turns:
            draft.add_completion(turn)
        return draft.build_action(make_action().key, AGENT, "stop")

    def test_masks_and_log_probs_of_several_turns_keep_to_their_tokens(self) -> None:
        first = Completion(
            np.array([4, 5], np.int32), np.array([0.0, -0.5], np.float32), "a", "stop",
            masks=GrammarMasks.from_masks([1], [b"\x60"]), forced=(0,),
        )  # fmt: skip
        action = self.said(first, first)
        assert action.marks.tolist() == [TokenSource.FORCED, TokenSource.SAMPLED] * 2
        assert action.log_probs.tolist() == [-0.5, -0.5]
        assert action.masks
        assert action.masks.at.tolist() == [1, 3]

    def test_masks_stand_behind_what_a_teammate_wrote_first(self) -> None:
        theirs = np.full(2, TokenSource.TEAMMATE, np.uint8)
        draft = ActionBuilder(
            Prompt(np.array([7], np.int32)), ResponsePrefix(np.array([8, 9], np.int32), theirs, np.zeros(2))
        )
        said = np.array([4, 5], np.int32), np.array([0.0, -0.5], np.float32)
        draft.add_completion(Completion(*said, "a", "stop", masks=GrammarMasks.from_masks([1], [b"\x60"]), forced=(0,)))
        action = draft.build_action(make_action().key, AGENT, "stop")
        assert action.marks.tolist() == [
            TokenSource.TEAMMATE,
            TokenSource.TEAMMATE,
            TokenSource.FORCED,
            TokenSource.SAMPLED,
        ]
        assert action.masks
        assert action.masks.at.tolist() == [3]

    def test_where_all_was_forced_the_last_token_stands_for_a_decision(self) -> None:
        action = self.said(Completion(np.array([4, 2], np.int32), np.zeros(2, np.float32), "7", "stop", forced=(0, 1)))
        assert action.marks.tolist() == [TokenSource.FORCED, TokenSource.SAMPLED]
        assert (action.num_decisions, action.is_forced, action.log_probs.tolist()) == (1, True, [0.0])
