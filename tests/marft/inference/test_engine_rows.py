"""A row that cannot be sampled is nobody else's trouble: the others go on with what they would have said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools.model_families import build_small_backbone

from marft.common.errors import RowFailedError
from marft.common.token_data import Grammar
from marft.common.types import Option, Prompt, SamplingParams
from marft.inference.choice_sampling import ChoiceRequest, choose
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.models.backbone import Backbone
from marft.models.decode_cache import PackedDecodeCache
from marft.rollout.local_runner import LocalRolloutRunner
from tests.families import FAMILY
from tests.marft.inference.test_decoding import PROMPTS, new_batch, row, run, tuned
from tests.marft.inference.test_engine import key, settings
from tests.nights import BY_NIGHT

__all__ = ["tuned"]  # a fixture
POISON = 99  # an id that no other row reads or has for a prompt


def deaf(_: int) -> None:
    raise OSError("nobody hears")


GUILTY: dict[str, Callable[[], DecodeRequest]] = {
    "an id that there is not": lambda: row((5, 10**6)),
    "an id below 0": lambda: row((5, -1)),
    "an adapter that there is not": lambda: row((POISON,), "nobody"),
    "no prompt": lambda: row(()),
    "a listener that raises": lambda: row((POISON,), on_token=deaf),
    "a stop that is no text": lambda: row((POISON,), stop=(5,)),
    "a temperature that is no number": lambda: row((POISON,), temperature=float("nan")),
    "a temperature below 0": lambda: row((POISON,), temperature=-1.0),
    "a top-p that is no number of any size": lambda: row((POISON,), top_p="x"),
    "a top-k beyond all numbers below 0": lambda: row((POISON,), top_k=-(10**30)),
    "too few numbers to sample with": lambda: replace(row((POISON,)), uniforms=np.zeros(2, np.float32)),
    "a grammar that is none": lambda: row((POISON,), grammar=Grammar("regex", "(")),
}


def texts(done: dict[int, RowResult], rows: list[DecodeRequest]) -> list[list[int]]:
    return [done[id(one)].tokens.tolist() for one in rows]


@pytest.mark.parametrize("what", GUILTY)
@pytest.mark.parametrize("later", [pytest.param(False, marks=BY_NIGHT), True], ids=["with the others", "beside them"])
def test_a_guilty_row_fails_alone(tuned: Backbone, what: str, later: bool) -> None:
    innocent = [row(prompt, adapter) for prompt, adapter in zip(PROMPTS[:3], (None, "one", "two"), strict=True)]
    alone = texts(run(new_batch(tuned), innocent), innocent)
    guilty, batch = GUILTY[what](), new_batch(tuned)
    done = run(batch, innocent, [guilty]) if later else run(batch, [innocent[0], guilty, *innocent[1:]])
    assert done[id(guilty)].error
    assert texts(done, innocent) == alone
    assert not any(done[id(one)].error for one in innocent)
    assert (len(done[id(guilty)].tokens), len(done[id(guilty)].log_probs)) == (0, 0)
    assert batch.live == batch.adapters == []


def test_a_top_k_beyond_all_numbers_is_that_of_the_whole_vocabulary(backbone: Backbone) -> None:
    rows = [row((5, 6), top_k=count) for count in (0, 10**30)]
    first, second = texts(run(new_batch(backbone), rows), rows)
    assert first == second


def test_of_two_prompts_that_are_read_together_the_one_that_cannot_be_is_left_out(
    tuned: Backbone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    innocent, guilty = row(PROMPTS[0]), row((5, POISON))
    alone = texts(run(new_batch(tuned), [innocent]), [innocent])
    embed = tuned.decoder.get_input_embeddings()
    before = embed.forward

    def forward(ids: torch.Tensor) -> torch.Tensor:
        if bool((ids == POISON).any()):
            raise RuntimeError("that one")
        return before(ids)

    monkeypatch.setattr(embed, "forward", forward)
    with caplog.at_level(logging.ERROR, "marft"):
        done = run(new_batch(tuned), [innocent, guilty])
    assert str(done[id(guilty)].error) == "that one"
    assert texts(done, [innocent]) == alone
    (record,) = caplog.records
    assert "a row could not be sampled, and is left out: RuntimeError: that one" in record.getMessage()
    assert record.exc_info
    assert record.exc_info[1] is done[id(guilty)].error


def test_what_no_row_raises_alone_is_raised_by_the_batch(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: object) -> None:
        raise RuntimeError("device lost")

    batch = new_batch(backbone)
    batch.admit([row((5, 6)), row((8, 9))])
    monkeypatch.setattr(batch.decode_cache, "step", boom)
    with pytest.raises(RuntimeError, match="device lost"):
        batch.step()
    assert len(batch) == 2


@pytest.mark.parametrize("name", ["", "LFM 2", "Doge"], ids=["keys and values", "states", "the model's own cache"])
def test_a_row_that_no_forward_can_read_fails_alone_wherever_it_stands(
    backbone: Backbone, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From some token on: the others have sampled as much by then. Layers before the failing one have new states."""
    backbone = build_small_backbone(FAMILY[name]) if name else backbone
    innocent = [row(prompt, temperature=0.0) for prompt in PROMPTS[:4]]
    alone = run(new_batch(backbone), innocent)
    guilty = row((40, 41, 42, 43), temperature=0.0)  # of a length of its own, which a model's own cache goes by
    read = {*guilty.prompt.tolist(), *(id for one in innocent for id in one.prompt.tolist())}
    read |= {id for done in alone.values() for id in done.tokens.tolist()}
    said = run(new_batch(backbone), [guilty])[id(guilty)].tokens.tolist()
    bad = next(token for token in said[2:-1] if token not in read)
    batch = new_batch(backbone)
    embed, last_layer = backbone.decoder.get_input_embeddings(), backbone.decoder.layers[-1]
    before, last_before = embed.forward, last_layer.forward
    is_bad = False

    def forward(ids: torch.Tensor) -> torch.Tensor:
        nonlocal is_bad
        is_bad = bool((ids == bad).any())
        if is_bad and not name:
            raise RuntimeError("that one")
        return before(ids)

    def last_forward(*inputs: Any, **keywords: Any) -> Any:
        if is_bad:
            raise RuntimeError("that one")
        return last_before(*inputs, **keywords)

    monkeypatch.setattr(embed, "forward", forward)
    monkeypatch.setattr(last_layer, "forward", last_forward)
    finished, steps = batch.admit([*innocent[:3], guilty, *innocent[3:]]), 0
    while len(batch):
        finished, steps = finished + batch.step(), steps + 1
    assert steps == max(len(done.tokens) for done in alone.values()) - 1, "every step is one for the others"
    done = {id(one.row): one for one in finished}
    assert str(done[id(guilty)].error) == "that one"
    assert isinstance(batch.decode_cache, PackedDecodeCache) is (name != "Doge")
    for one in innocent:
        assert done[id(one)].tokens.tolist() == alone[id(one)].tokens.tolist()
        np.testing.assert_allclose(done[id(one)].log_probs, alone[id(one)].log_probs, atol=1e-4)
    assert batch.prefill.tokens.requested == sum(len(one.prompt) for one in (guilty, *innocent))
    again = [replace(one) for one in innocent]
    assert texts(run(batch, again), again) == texts(alone, innocent), "and it reads prompts as before"
    (lonely,) = run(batch, [replace(guilty)]).values()
    assert str(lonely.error) == "that one"


def asked(rollouts: LocalRolloutRunner, *samplings: SamplingParams) -> list[Any]:
    engine = rollouts.engine.engines["actor"]

    async def ask() -> list[Any]:
        calls = [
            engine.sample("actor", Prompt(np.array([5], np.int32)), one, key(n)) for n, one in enumerate(samplings)
        ]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return rollouts.wait_for(ask())


PLAIN = SamplingParams(max_new_tokens=5)


def test_the_engine_says_which_row_failed_and_answers_as_before(
    random_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalRolloutRunner(settings(random_model)) as rollouts, caplog.at_level(logging.ERROR, "marft"):
        (before,) = asked(rollouts, PLAIN)
        beside, guilty = asked(rollouts, PLAIN, replace(PLAIN, on_token=deaf))
        (after,) = asked(rollouts, PLAIN)
        problem = rollouts.engine.problem
    assert isinstance(guilty, RowFailedError)
    assert "nobody hears" in str(guilty)
    assert "nobody hears" in caplog.text
    assert before.tokens.tolist() == beside.tokens.tolist() == after.tokens.tolist()
    assert problem == ""


@pytest.mark.parametrize("where", ["step", "admit"])
def test_an_engine_that_cannot_go_on_says_so_until_it_can(
    random_model: Path, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def boom(*_: object) -> None:
        raise RuntimeError("device lost")

    with LocalRolloutRunner(settings(random_model)) as rollouts, caplog.at_level(logging.ERROR, "marft"):
        (before,) = asked(rollouts, PLAIN)
        with monkeypatch.context() as patched:
            patched.setattr(RunningBatch, where, boom)
            assert [str(one) for one in asked(rollouts, PLAIN, PLAIN)] == ["device lost"] * 2
            assert "device lost" in rollouts.engine.problem
        (after,) = asked(rollouts, PLAIN)
        assert rollouts.engine.problem == ""
    assert before.tokens.tolist() == after.tokens.tolist()
    assert "the engine cannot go on" in caplog.text


def test_a_choice_that_cannot_be_made_is_nobody_elses(random_model: Path) -> None:
    options = [Option(np.array([number, 2], np.int32)) for number in (5, 6)]

    async def ask(engine: Any) -> list[Any]:
        prompts = (Prompt(np.array([id], np.int32)) for id in (5, 10**6, 7))
        calls = [engine.choose("actor", prompt, options, SamplingParams(), key(n)) for n, prompt in enumerate(prompts)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    with LocalRolloutRunner(settings(random_model)) as rollouts:
        first, second, third = rollouts.wait_for(ask(rollouts.engine.engines["actor"]))
    assert isinstance(second, RowFailedError)
    assert first[0].options
    assert third[0].options


def test_a_policy_or_an_adapter_that_there_is_not_is_refused_by_name(random_model: Path) -> None:
    prompt, options = Prompt(np.array([5], np.int32)), [Option(np.array([number, 2], np.int32)) for number in (5, 6)]

    async def ask(engine: Any) -> list[Any]:
        calls = [
            engine.sample("actor", prompt, PLAIN, key(0)),
            engine.sample("acter", prompt, PLAIN, key(1)),
            engine.sample_row("acter", row((5,)), key(2)),
            engine.choose("acter", prompt, options, SamplingParams(), key(3)),
            engine.sample_row("actor", row((5,), "nobody"), key(4)),
        ]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    with LocalRolloutRunner(settings(random_model)) as rollouts:
        engine: Any = rollouts.engine.engines["actor"]
        good, *refused, adapter = rollouts.wait_for(ask(engine))
        with pytest.raises(ValueError, match="no adapter called 'nobody'"):
            choose(
                engine.policies["actor"].backbone, [ChoiceRequest("nobody", prompt.ids, options, SamplingParams(), 0.5)]
            )
    assert len(good.tokens)
    assert [str(error) for error in refused] == [
        "the engine samples no policy called 'acter'; did you mean 'actor'?"
    ] * 3
    assert "no adapter called 'nobody'" in str(adapter)
    assert all(isinstance(error, ValueError) for error in refused)
