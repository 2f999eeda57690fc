"""The running batch: what it samples, with what probability, and that neighbours do not matter."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.streaming import Detokenizer
from marft.common import seeds
from marft.common.reasoning import StopString
from marft.common.types import SamplingParams
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.inference.sampling import BLOCK_SIZE, sample_from_weights, sample_tokens, top_k_top_p_mask
from marft.models import decode_cache
from marft.models.attention import KVCache
from marft.models.backbone import Backbone
from marft.models.decode_cache import PackedDecodeCache
from marft.models.packed_rows import PackedRows
from tests.helpers import lengths_read


def row(prompt: tuple[int, ...], adapter: str | None = None, seed: int = 0, **options: object) -> DecodeRequest:
    sampling = SamplingParams(**{"max_new_tokens": 12, **options})  # type: ignore[arg-type]
    uniforms = seeds.generator(seed, "row", *prompt).random(sampling.max_new_tokens, np.float32)
    return DecodeRequest(adapter, np.array(prompt, np.int32), sampling, uniforms)


def run(
    batch: RunningBatch, rows: list[DecodeRequest], later: list[DecodeRequest] | None = None
) -> dict[int, RowResult]:
    finished = batch.admit(rows)
    steps = 0
    while len(batch) or later:
        steps += 1
        if later and steps == 3:
            finished += batch.admit(later)
            later = None
        if len(batch):
            finished += batch.step()
    return {id(done.row): done for done in finished}


def new_batch(backbone: Backbone, stop_ids: tuple[int, ...] = (2,)) -> RunningBatch:
    return RunningBatch(backbone, stop_ids, lambda: Detokenizer(lambda ids: " ".join(str(i) for i in ids)))


PROMPTS = [(5, 6, 7), (8, 9), (10, 11, 12, 13, 14), (20,), (5, 6, 7), (30, 31, 32)]


@pytest.fixture
def tuned(backbone: Backbone) -> Backbone:
    torch.manual_seed(5)
    for policy in ("one", "two"):
        backbone.add_adapter(policy, 4, 8.0, ("q_proj", "v_proj"), seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    return backbone


def test_the_likeliest_tokens_are_told_of_rows_that_ask_for_them(backbone: Backbone) -> None:
    rows = [row((5, 6, 7), alternatives=4, temperature=0.5), row((8, 9)), row((5, 6), alternatives=3, temperature=0.0)]
    done = run(new_batch(backbone), rows)
    first, plain, greedy = (done[id(one)] for one in rows)
    assert plain.alternatives == ()
    assert [len(of_one) for of_one in first.alternatives] == [4] * len(first.tokens)
    assert [of_one[0][0] for of_one in greedy.alternatives] == greedy.tokens.tolist()
    for one in (first, greedy):
        for token, log_prob, others in zip(one.tokens.tolist(), one.log_probs.tolist(), one.alternatives, strict=True):
            values = [value for _, value in others]
            assert values == sorted(values, reverse=True)
            assert sum(np.exp(values)) < 1 + 1e-5
            assert dict(others).get(token, log_prob) == pytest.approx(log_prob, abs=1e-6)
            assert token in dict(others) or log_prob <= values[-1] + 1e-6


def test_what_is_impossible_is_no_alternative(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    all_logits = backbone.compute_logits

    def few(hidden: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
        logits = all_logits(hidden, temperatures)
        logits[:, 3:] = -torch.inf
        return logits

    monkeypatch.setattr(backbone, "compute_logits", few)
    asks = row((5, 6), alternatives=9)
    done = run(new_batch(backbone), [asks])[id(asks)]
    assert {frozenset(token for token, _ in likely) for likely in done.alternatives} == {frozenset((0, 1, 2))}


def test_a_row_may_be_told_each_token_with_its_log_prob_and_what_else_was_likely(backbone: Backbone) -> None:
    told: dict[str, list[object]] = {"asks": [], "plain": [], "heard": []}
    rows = [
        replace(row((5, 6), alternatives=2), token_callback=lambda *said: told["asks"].append(said)),
        replace(row((8, 9), on_token=told["heard"].append), token_callback=lambda *said: told["plain"].append(said)),
    ]
    done = run(new_batch(backbone), rows)
    asks, plain = (done[id(one)] for one in rows)
    assert told["asks"] == [*zip(asks.tokens.tolist(), asks.log_probs.tolist(), asks.alternatives, strict=True)]
    assert told["plain"] == [(token, p, ()) for token, p in zip(plain.tokens, plain.log_probs.tolist(), strict=True)]
    assert {len(likely) for likely in asks.alternatives} == {2}
    assert told["heard"] == [], "its listener is told nothing then"


def test_a_batch_that_let_go_of_all_rows_samples_as_a_new_one(backbone: Backbone) -> None:
    later = [row((5, 6), temperature=0.0), row((8, 9), temperature=0.3), row((20,), temperature=2.0)]
    alone, batch, forgot = run(new_batch(backbone), later), new_batch(backbone), list[bool]()
    batch.grammar_masker = SimpleNamespace(clear_cache=lambda: forgot.append(True))  # type: ignore[assignment]
    options = {"alternatives": 2, "stop": ("no such text",), "on_token": lambda token: None, "temperature": 5.0}
    batch.admit([row(prompt, **options) for prompt in PROMPTS[:3]])  # type: ignore[arg-type]
    assert isinstance(batch.decode_cache, PackedDecodeCache)
    assert batch.decode_cache.kv_cache.keys[0] is not None
    batch.reset()
    assert batch.live == batch.adapters == []
    assert batch.decode_cache.kv_cache.keys[0] is None, "its memory is given back"
    assert forgot == [True]
    done = run(batch, later)
    for one in later:
        assert done[id(one)].tokens.tolist() == alone[id(one)].tokens.tolist()


@pytest.mark.parametrize("room", [1, 64])
def test_greedy_tokens_and_log_probs_equal_a_forward_over_the_whole_row(
    tuned: Backbone, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows outgrow the room that they begin with."""
    monkeypatch.setattr(decode_cache, "INITIAL_CAPACITY", room)
    policies = ["one", "two", None, "one", "two", "one"]
    rows = [row(p, a, temperature=0.0) for p, a in zip(PROMPTS, policies, strict=True)]
    done = run(new_batch(tuned), rows)
    for one, policy in zip(rows, policies, strict=True):
        tokens, log_probs = done[id(one)].tokens, done[id(one)].log_probs
        whole = PackedRows.from_rows([np.concatenate([one.prompt, tokens])], [policy], tuned.device)
        log_p = (tuned.hidden_states(whole) @ tuned.head.weight.T).log_softmax(-1)[len(one.prompt) - 1 : -1]
        assert tokens.tolist() == log_p.argmax(-1).tolist()
        expected = log_p.gather(1, torch.from_numpy(tokens).long()[:, None])[:, 0].detach().numpy()
        np.testing.assert_allclose(log_probs, expected, atol=1e-5)


def test_a_row_samples_the_same_whoever_its_neighbours_are(tuned: Backbone) -> None:
    """Its random stream is its own; finished neighbours are swapped out and others join while it runs."""
    options = [{"max_new_tokens": n} for n in (12, 3, 7, 1, 12, 5)]
    policies = ["one", "two", None, "one", "two", "one"]
    rows = [row(p, a, seed=i, **o) for i, (p, a, o) in enumerate(zip(PROMPTS, policies, options, strict=True))]
    alone = {id(one): run(new_batch(tuned), [one])[id(one)].tokens.tolist() for one in rows}
    together = run(new_batch(tuned), rows)
    staggered = run(new_batch(tuned), rows[:4], later=rows[4:])
    for one in rows:
        assert together[id(one)].tokens.tolist() == alone[id(one)]
        assert staggered[id(one)].tokens.tolist() == alone[id(one)]


def test_log_probs_are_those_of_the_sampling_temperature(tuned: Backbone) -> None:
    one = row((5, 6, 7), "one", temperature=0.5)
    done = run(new_batch(tuned), [one])[id(one)]
    whole = PackedRows.from_rows([np.concatenate([one.prompt, done.tokens])], ["one"], tuned.device)
    log_p = (tuned.hidden_states(whole) @ tuned.head.weight.T / 0.5).log_softmax(-1)[2:-1]
    expected = log_p.gather(1, torch.from_numpy(done.tokens).long()[:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(done.log_probs, expected, atol=1e-5)


def test_the_end_of_turn_token_is_recorded_and_ends_the_row(backbone: Backbone) -> None:
    greedy = row((5, 6, 7), temperature=0.0)
    first = int(run(new_batch(backbone), [greedy])[id(greedy)].tokens[0])
    again = row((5, 6, 7), temperature=0.0)
    done = run(new_batch(backbone, stop_ids=(first,)), [again])[id(again)]
    assert done.tokens.tolist() == [first]
    assert done.finish == "stop"


def test_a_row_that_reaches_its_limit_says_so(backbone: Backbone) -> None:
    one = row((5, 6, 7), max_new_tokens=4)
    done = run(new_batch(backbone, stop_ids=()), [one])[id(one)]
    assert (len(done.tokens), done.finish) == (4, "length")


def test_a_stop_string_ends_the_row_after_the_token_that_completes_it(backbone: Backbone) -> None:
    free = row((5, 6, 7), temperature=0.0)
    tokens = run(new_batch(backbone, stop_ids=()), [free])[id(free)].tokens
    stopped = row((5, 6, 7), temperature=0.0, stop=(f"{tokens[1]} {tokens[2]}",))
    done = run(new_batch(backbone, stop_ids=()), [stopped])[id(stopped)]
    assert done.tokens.tolist() == tokens[:3].tolist()
    assert done.finish == "stop"


def test_each_row_ends_at_its_own_stop_strings_and_leaves_none(backbone: Backbone) -> None:
    prompts, batch = [(5, 6, 7), (8, 9), (20,)], new_batch(backbone, stop_ids=())
    free = [row(prompt, temperature=0.0) for prompt in prompts]
    whole = run(batch, free)
    tokens = [whole[id(one)].tokens.tolist() for one in free]
    most = [4, 6, 12]
    stops = [(" ".join(map(str, tokens[0][1:4])),), (" ".join(map(str, tokens[1][2:6])),), ()]
    ended = [row(prompt, temperature=0.0, stop=stop) for prompt, stop in zip(prompts, stops, strict=True)]
    done = run(batch, ended)
    assert [done[id(one)].tokens.tolist() for one in ended] == [
        part[:count] for part, count in zip(tokens, most, strict=True)
    ]
    assert not batch.live


def test_a_mark_that_ends_what_is_said_ends_no_thought(backbone: Backbone) -> None:
    free = row((5, 6, 7), temperature=0.0)
    tokens = run(new_batch(backbone, stop_ids=()), [free])[id(free)].tokens.tolist()
    mark = f"{tokens[3]} {tokens[4]}"
    for begun, most in ((False, 5), (True, 12)):
        one = row((5, 6, 7), temperature=0.0, stop=(StopString(mark, begun),))
        done = run(new_batch(backbone, stop_ids=()), [one])[id(one)]
        assert (done.tokens.tolist(), done.finish) == (tokens[:most], "length" if begun else "stop")


def test_rows_with_one_prompt_share_a_prefill(tuned: Backbone) -> None:
    seen = lengths_read(tuned)
    batch = new_batch(tuned)
    batch.admit(
        [row((5, 6, 7), "one", seed=1), row((5, 6, 7), "one", seed=2), row((5, 6, 7), "two"), row((8, 9), "one")]
    )
    assert seen == [3 + 2 + 3]


def test_the_weights_cannot_change_under_running_rows(backbone: Backbone) -> None:
    batch = new_batch(backbone)
    batch.admit([row((5, 6, 7))])
    if len(batch):
        with pytest.raises(AssertionError):
            batch.clear_cache()


def test_drawn_frequencies_match_the_distribution() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 12)
    n = 40_000
    uniforms = torch.rand(n)
    ids, _ = sample_tokens(logits.expand(n, -1).clone(), uniforms, torch.zeros(n, dtype=torch.bool), None)
    frequencies = torch.bincount(ids, minlength=12) / n
    torch.testing.assert_close(frequencies, logits.softmax(-1)[0], rtol=0, atol=0.01)


@given(
    u=st.floats(0, 1, exclude_max=True, width=32), logits=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=6)
)
def test_every_uniform_number_draws_a_possible_token(u: float, logits: list[float]) -> None:
    table = torch.tensor([[*logits, float("-inf")]])
    ids, log_probs = sample_tokens(table, torch.tensor([u]), torch.tensor([False]), None)
    assert 0 <= ids.item() < len(logits)
    assert torch.isfinite(log_probs).all()


@given(
    data=st.data(), vocabulary=st.sampled_from([1, 5, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE + 7])
)
@settings(max_examples=40)
def test_a_uniform_number_draws_the_token_whose_share_holds_it(data: st.DataObject, vocabulary: int) -> None:
    """Shares are [from, to): whole numbers over a power of two are exact, at their edges too."""
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=vocabulary, max_size=vocabulary)))
    weights[data.draw(st.integers(0, vocabulary - 1))] += 1024 - weights.sum()
    asked = [0, 2 * 1024 - 1, *data.draw(st.lists(st.sampled_from(range(2 * 1024)), min_size=1, max_size=20))]
    drawn = sample_from_weights(
        torch.tensor(weights, dtype=torch.float32).expand(len(asked), -1), torch.tensor(asked) / (2 * 1024)
    )
    ends = np.cumsum(weights)
    assert drawn.tolist() == [int(np.flatnonzero(2 * ends > u)[0]) for u in asked]


def test_of_equal_tokens_each_has_its_share_in_every_block() -> None:
    count = 4 * BLOCK_SIZE
    middles = (torch.arange(count) + 0.5) / count
    assert sample_from_weights(torch.ones(count, count), middles).tolist() == list(range(count))


@given(below=st.integers(1, 40), light=st.floats(1e-30, 1e-7))
def test_a_number_next_to_one_draws_no_token_of_weight_zero(below: int, light: float) -> None:
    """Sums of blocks and of their tokens round differently: what is left may reach the end of a block."""
    weights = torch.zeros(1, 3 * BLOCK_SIZE)
    weights[0, : BLOCK_SIZE + 2] = light
    weights[0, 0] = 1.0
    assert weights[0, sample_from_weights(weights, torch.tensor([1 - below * 2.0**-24])).item()] > 0


def test_a_remainder_that_rounding_makes_negative_draws_no_token_of_weight_zero() -> None:
    """In float32 1.5 + 2²⁴ − 2²⁴ is 2: what is left of 1.75 in the second block is less than nothing."""
    weights = torch.zeros(1, 2 * BLOCK_SIZE)
    weights[0, 0], weights[0, BLOCK_SIZE + 1] = 1.5, 2.0**24
    drawn = sample_from_weights(weights, torch.tensor([1.75 / float(weights.sum())]))
    assert drawn.tolist() == [BLOCK_SIZE + 1]


def test_logits_that_are_no_numbers_draw_a_token_that_there_is() -> None:
    """Their log-prob says so, and the episode is dropped for it."""
    ids, log_probs = sample_tokens(torch.full((2, BLOCK_SIZE + 1), float("nan")), torch.tensor([0.0, 0.5]), None, None)
    assert all(0 <= index <= BLOCK_SIZE for index in ids.tolist())
    assert torch.isnan(log_probs).all()


def test_what_is_drawn_keeps_its_log_prob_in_the_whole_distribution() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [2.0, 1.0, 3.0], [3.0, 2.0, 1.0]])
    allowed = torch.tensor([[False, False, True], [True, True, False], [True, True, True]])
    greedy = torch.tensor([False, False, True])
    ids, log_probs = sample_tokens(logits.clone(), torch.tensor([0.1, 0.99, 0.99]), greedy, allowed)
    assert ids.tolist() == [2, 1, 0]
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).gather(1, ids[:, None])[:, 0])


def test_top_k_and_top_p_find_the_likeliest_tokens_wherever_they_stand() -> None:
    logits = torch.tensor([0.05, 0.5, 0.15, 0.3]).log().expand(4, -1)
    options = [
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=3, top_p=0.7),
        SamplingParams(top_k=1, top_p=0.99),
    ]
    allowed = top_k_top_p_mask(logits, options)
    assert allowed is not None
    assert allowed.tolist() == [
        [False, True, False, True], [False, True, True, True], [False, True, False, True], [False, True, False, False],
    ]  # fmt: skip
    assert top_k_top_p_mask(logits[:1], [SamplingParams(top_k=1)]) is not None
    assert top_k_top_p_mask(logits[:2], [SamplingParams(), SamplingParams(top_p=0.5)]) is not None


def test_top_k_and_top_p_leave_the_likeliest_tokens() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4, -1)
    options = [SamplingParams(top_k=2), SamplingParams(top_p=0.7), SamplingParams(top_p=0.01), SamplingParams()]
    allowed = top_k_top_p_mask(logits, options)
    assert allowed is not None
    assert allowed.tolist() == [
        [True, True, False, False], [True, True, False, False], [True, False, False, False], [True] * 4,
    ]  # fmt: skip
    assert top_k_top_p_mask(logits, [SamplingParams()] * 4) is None


def test_the_cache_grows_without_losing_what_it_holds() -> None:
    cache = KVCache(1)
    cache.reserve(2, 4)
    keys = torch.arange(2 * 3 * 1 * 2, dtype=torch.float32).view(6, 1, 2)
    cache.write_rows(0, keys, keys + 100, [3, 3], [[0], [1]])
    cache.reserve(5, 9)
    assert cache.capacity >= 9
    assert cache.keys[0] is not None
    assert torch.equal(cache.keys[0][1, 0, :3], keys[3:, 0])


def test_rows_that_are_abandoned_leave_the_others_as_they_would_have_been(tuned: Backbone) -> None:
    rows = [
        row(prompt, adapter, max_new_tokens=12)
        for prompt, adapter in zip(PROMPTS, ["one", None, "two"] * 2, strict=True)
    ]
    alone = run(new_batch(tuned), [rows[1], rows[4]])
    batch, told = new_batch(tuned), list[int]()
    leaving = row((40, 41), "one", on_token=told.append, stop=("no such text",), alternatives=2)
    ended = {id(done.row) for done in (*batch.admit([rows[0], rows[1], leaving, rows[4]]), *batch.step())}
    batch.abort([rows[0], leaving])
    assert not {rows[0], leaving}.intersection(batch.rows)
    together = run(batch, [])
    assert len(told) == 2
    assert {id(rows[1]), id(rows[4])} - ended == together.keys()
    for name, done in together.items():
        assert done.tokens.tolist() == alone[name].tokens.tolist()
