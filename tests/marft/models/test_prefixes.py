"""Keys and values of what prompts begin with: computed once, and the same rows sampled as without."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marft.agents.streaming import Detokenizer
from marft.common import seeds
from marft.common.types import ActionKey, Completion, Prompt, SamplingParams
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.inference.local import LocalEngine, LocalPolicy, _task_pass
from marft.inference.prefill import Prefill, PrefillRequest, PrefixCache
from marft.models import backbone as backbone_module
from marft.models.attention import KVCache
from marft.models.backbone import Backbone
from marft.models.decode_cache import new_decode_cache
from marft.models.packed_rows import PackedRows, PrefixTree
from marft.rollout.local_runner import LocalRolloutRunner
from tests.helpers import lengths_read
from tests.helpers import settings as run_settings
from tests.nights import BY_NIGHT

ROOM = 2**30
ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


@pytest.fixture
def tuned(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    monkeypatch.setattr(backbone_module, "NODE_COST", 0.0)  # the model is so small that nothing would be shared
    torch.manual_seed(5)
    for policy in ("one", "two"):
        backbone.add_adapter(policy, 4, 8.0, ("q_proj", "k_proj", "v_proj"), seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    return backbone


def row(
    prompt: list[int], adapter: str | None = "one", tasks: str = "", tokens: int = 6, seed: int = 0
) -> DecodeRequest:
    uniforms = seeds.generator(seed, "row", *prompt).random(tokens, np.float32)
    return DecodeRequest(adapter, np.array(prompt, np.int32), SamplingParams(max_new_tokens=tokens), uniforms, tasks)


def finished(batch: RunningBatch, rows: list[DecodeRequest]) -> list[RowResult]:
    done = batch.admit(rows)
    while len(batch):
        done += batch.step()
    return sorted(done, key=lambda one: [each is one.row for each in rows].index(True))


def batch_of(backbone: Backbone, prefix_bytes: int = ROOM) -> RunningBatch:
    return RunningBatch(backbone, (2,), lambda: Detokenizer(lambda ids: " ".join(map(str, ids))), prefix_bytes)


class Cache(KVCache):
    """A cache whose slot holds, for each token, a number that names it and all that stands before it."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(1)
        names = [float(hash(tuple(ids[: end + 1])) % 10_007) for end in range(len(ids))]
        self.keys = [torch.tensor(names)[None, None, :, None]]
        self.values = [-torch.tensor(names)[None, None, :, None]]


@given(rows=ROWS, limit=st.integers(0, 200))
def test_what_is_found_is_the_longest_prefix_with_its_own_keys_and_no_more_than_allowed_is_kept(
    rows: list[list[int]], limit: int
) -> None:
    kept, everything = PrefixCache(limit, min_length=1), PrefixCache(ROOM, min_length=1)
    seen: list[list[int]] = []
    for ids in rows:
        array, names = np.array(ids, np.int32), Cache(ids).keys[0]
        assert names is not None
        longest = max((common(ids[:-1], other) for other in seen), default=0)
        for prefixes, most in ((kept, longest), (everything, longest)):
            found = prefixes.find(("", None), array)
            assert len(found) <= most
            assert len(found) == most or prefixes is kept
            for number, sign in ((0, 1), (1, -1)) if len(found) else ():
                parts = torch.cat(found.tensors(number), 1)
                assert torch.equal(parts, sign * names[0, :, : len(found)])
            prefixes.store(("", None), array, Cache(ids), 0)
            assert prefixes.size == stored(prefixes) <= prefixes.limit
        for owner in (("", "other"), ("later", None)):
            assert not len(kept.find(owner, array))
        seen.append(ids)


def common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def stored(prefixes: PrefixCache) -> int:
    waiting, size = list(prefixes._roots.values()), 0
    while waiting:
        edge = waiting.pop()
        size += edge.size
        waiting += edge.children.values()
    return size


def test_what_was_used_longest_ago_goes_first() -> None:
    prefixes = PrefixCache(3 * 8 * 2, min_length=1)  # three rows of two tokens of two numbers each
    for first in (1, 2, 3):
        prefixes.store(("", None), np.array([first, 9], np.int32), Cache([first, 9]), 0)
    prefixes.find(("", None), np.array([1, 9, 9], np.int32))
    prefixes.store(("", None), np.array([4, 9], np.int32), Cache([4, 9]), 0)
    left = [first for first in (1, 2, 3, 4) if len(prefixes.find(("", None), np.array([first, 9, 9], np.int32)))]
    assert left == [1, 3, 4]


@given(rows=ROWS, owners=st.data())
def test_every_row_of_a_forest_finds_its_own_tokens_and_each_prefix_is_there_once(
    rows: list[list[int]], owners: st.DataObject
) -> None:
    of = [owners.draw(st.sampled_from(["a", "b", None])) for _ in rows]
    forest = PrefixTree.from_rows([np.array(ids, np.int32) for ids in rows], of)
    assert [forest.ids[places].tolist() for places in forest.token_indices] == rows
    assert all(forest.positions[places].tolist() == list(range(len(places))) for places in forest.token_indices)
    assert len(forest.ids) == len(
        {(o, *ids[: n + 1]) for o, ids in zip(of, rows, strict=True) for n in range(len(ids))}
    )
    for places, owner in zip(forest.token_indices, of, strict=True):
        assert {name for name, start, stop in forest.owner_spans() if ((start <= places) & (places < stop)).any()} == {
            owner
        }


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@BY_NIGHT
def test_rows_are_sampled_as_without_what_was_kept(tuned: Backbone, data: st.DataObject) -> None:
    """Several policies, turns that go on from what was sampled, and little room, so that some of it is gone again."""
    room = data.draw(st.sampled_from([ROOM, 60_000]))
    kept, plain = batch_of(tuned, room), batch_of(tuned, 0)
    heads = [list(range(5, 5 + n)) for n in (18, 40)]
    turns: list[list[int]] = [heads[n % 2] for n in range(4)]
    for turn in range(3):
        rows = [
            row([*ids, *data.draw(st.lists(st.integers(3, 9), min_size=1, max_size=4))], adapter, seed=turn)
            for ids, adapter in zip(turns, ("one", "one", "two", None), strict=True)
        ]
        done, expected = finished(kept, rows), finished(plain, rows)
        for one, other in zip(done, expected, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            np.testing.assert_allclose(one.log_probs, other.log_probs, atol=2e-5)
        turns = [[*one.row.prompt.tolist(), *one.tokens.tolist()] for one in done]
    assert kept.prefill.tokens.requested == plain.prefill.tokens.requested
    assert kept.prefill.tokens.computed <= plain.prefill.tokens.computed
    assert kept.prefill.prefix_cache is not None
    assert kept.prefill.prefix_cache.size <= room


def test_a_next_turn_computes_only_what_is_new(tuned: Backbone) -> None:
    """But for the last token that was sampled, which nothing has read yet."""
    batch, seen = batch_of(tuned), lengths_read(tuned)
    ids, asked = list(range(5, 45)), 0
    for turn in range(4):
        asked += len(ids)
        (done,) = finished(batch, [row(ids, seed=turn)])
        ids = [*ids, *done.tokens.tolist(), 7, 8, 9]
    assert seen == [40, 4, 4, 4]
    assert (batch.prefill.tokens.requested, batch.prefill.tokens.computed) == (asked, 52)


def test_prompts_that_go_on_from_other_places_of_one_row_each_find_their_own_part_of_it(tuned: Backbone) -> None:
    ids = list(range(5, 45))
    kept, plain = batch_of(tuned), batch_of(tuned, 0)
    for batch in (kept, plain):
        finished(batch, [row(ids)])
    rows = [row([*ids[:length], 3, 4]) for length in (37, 20, 28)]
    for one, other in zip(finished(kept, rows), finished(plain, rows), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=2e-5)


def test_prompts_that_come_together_share_what_they_begin_with(tuned: Backbone) -> None:
    batch, seen = batch_of(tuned, 0), lengths_read(tuned)
    head = list(range(5, 45))
    finished(batch, [row([*head, n, n]) for n in range(3, 7)] + [row([*head, 3, 3], "two")])
    assert seen == [40 + 4 * 2 + 42]


def test_a_prompt_longer_than_a_forward_is_read_once_for_all_its_attempts(tuned: Backbone) -> None:
    batch, seen = batch_of(tuned, 0), lengths_read(tuned)
    prompts = [[3 + at % 30 for at in range(n)] for n in (5000, 5001)]
    batch.admit([row(prompt, tokens=1, seed=n) for n in range(3) for prompt in prompts])
    assert seen == [5000, 5001]


def test_nothing_is_shared_across_policies_passes_and_versions(tuned: Backbone) -> None:
    batch, seen = batch_of(tuned), lengths_read(tuned)
    ids = list(range(5, 45))
    for one in (row(ids, "one", "train/1"), row(ids, "two", "train/1"), row(ids, None, "train/1")):
        finished(batch, [one])
    finished(batch, [row(ids, "one", "train/1")])
    finished(batch, [row(ids, "one", "train/2")])
    finished(batch, [row(ids, "one", "train/1")])
    batch.clear_cache()
    finished(batch, [row(ids, "one", "train/1")])
    assert seen == [40, 40, 40, 1, 40, 40, 40]
    assert batch.prefill.tokens.requested == 7 * 40


def test_what_is_sampled_once_weights_have_moved_is_by_the_new_weights(tuned: Backbone) -> None:
    """In an engine, in the same pass over tasks: neither keys and values nor stacked adapters are those of before."""
    local = {str(name): LocalPolicy(tuned, name, Silent(), (2,)) for name in ("one", "two", None)}  # type: ignore[arg-type]
    prompt = Prompt(np.arange(5, 45, dtype=np.int32))

    async def sampled(engine: LocalEngine) -> list[Completion]:
        keys = [ActionKey("test/greedy", "t", 0, 0, name, 0) for name in local]
        asked = [engine.sample(key.agent, prompt, SamplingParams(max_new_tokens=4), key) for key in keys]
        return await asyncio.gather(*asked)

    with ThreadPoolExecutor(1) as worker:
        engine = LocalEngine(local, worker, seed=0, prefix_bytes=ROOM)

        async def played() -> list[Completion]:
            await sampled(engine)
            with torch.no_grad():
                for policy in ("one", "two"):
                    for adapter in tuned.adapters(policy).values():
                        adapter.b.neg_()
            await engine.publish(dict.fromkeys(local), 1)  # type: ignore[arg-type]
            return await sampled(engine)

        completions = asyncio.run(played())
    for policy, done in zip(local.values(), completions, strict=True):
        row = np.concatenate([prompt.ids, done.tokens])
        with torch.no_grad():
            hidden = tuned.hidden_states(PackedRows.from_rows([row], [policy.adapter], tuned.device))[39:-1]
        scores = (
            tuned.compute_logits(hidden, None).log_softmax(-1).gather(1, torch.from_numpy(done.tokens).long()[:, None])
        )
        np.testing.assert_allclose(done.log_probs, scores[:, 0].numpy(), atol=1e-4)


class Silent:
    """A tokenizer whose texts nobody reads."""

    added_tokens_decoder: ClassVar[dict[int, object]] = {}

    def decode(self, ids: list[int], **_: object) -> str:
        return ""


def test_a_step_and_its_forks_are_one_pass() -> None:
    streams = ("train/12", "train/12/1", "train/12/fork/a/2", "train/12+3", "train/13", "test/greedy")
    assert [_task_pass(ActionKey(s, "t", 0, 0, "a", 0)) for s in streams] == [
        *["train/12"] * 4,
        "train/13",
        "test/greedy",
    ]


def test_prefixes_are_found_where_attention_has_windows_caps_and_sinks() -> None:
    """Through the attention of those layers, which has the keys of a row beside each other."""
    from marft.models.attention import AttentionSpec
    from marft.models.tree_attention import CachedKeyValues, TreePlan

    torch.manual_seed(0)
    ids = np.arange(20, dtype=np.int32)
    rows = [ids, np.concatenate([ids[:15], ids[3:9]]), np.concatenate([ids[:12], ids[3:5]])]
    q, k, v = (torch.randn(21, 20, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    whole = PrefixTree.from_rows(rows, [None] * 3)
    rest = PrefixTree.from_rows(rows, [None] * 3, [(0, 10)] * 3, 10)
    at = [(forest.ids.astype(int), np.minimum(forest.positions, 19)) for forest in (whole, rest)]
    for weighing in (
        AttentionSpec(0.4), AttentionSpec(0.4, 5), AttentionSpec(0.4, None, 1.5), AttentionSpec(0.4, 5, 1.5), AttentionSpec(0.4, 7, None, torch.randn(4)),
    ):  # fmt: skip
        plan = TreePlan(whole, torch.device("cpu"))
        full = plan.attend(0, q[at[0]], k[at[0]], v[at[0]], weighing)
        known = CachedKeyValues([k[ids[:10], np.arange(10)]], [v[ids[:10], np.arange(10)]])
        part = TreePlan(rest, torch.device("cpu"), known).attend(0, q[at[1]], k[at[1]], v[at[1]], weighing)
        for one, other in zip(whole.token_indices, rest.token_indices, strict=True):
            torch.testing.assert_close(full[one[10:]], part[other[10:] - 10])


def test_where_a_model_runs_on_its_own_forward_nothing_is_kept(tuned: Backbone) -> None:
    tuned.use_slower_forward()
    tuned.use_slower_forward()
    assert tuned.native
    prefill = Prefill(tuned, new_decode_cache(tuned), ROOM)
    assert prefill.prefix_cache is None
    prefill.run([PrefillRequest("", "one", np.arange(3, 43, dtype=np.int32), [0])])
    assert (prefill.tokens.requested, prefill.tokens.computed) == (40, 40)


@pytest.mark.slow
def test_an_engine_says_how_many_tokens_of_prompts_it_computed(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbone_module, "NODE_COST", 0.0)

    async def twice(rollouts: LocalRolloutRunner) -> None:
        for sample in range(2):
            key = ActionKey("train/0", "t", sample, 0, "actor", 0)
            prompt = Prompt(np.arange(5, 45, dtype=np.int32))
            await rollouts.engine.sample("actor", prompt, SamplingParams(max_new_tokens=2), key)

    for megabytes, computed in ((1, 41), (0, 80)):
        run = run_settings(random_model, "runs", "--engine.prefix_cache_mb", str(megabytes))
        with LocalRolloutRunner(run) as rollouts:
            rollouts.wait_for(twice(rollouts))
            assert rollouts.usage()["prefill/prompt_tokens"] == 80
            assert rollouts.usage()["prefill/computed_tokens"] == computed
