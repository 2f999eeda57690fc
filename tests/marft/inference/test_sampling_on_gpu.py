"""On a simulated GPU, sampling draws what the CPU draws, and a token batch synchronizes once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from marft.agents.streaming import Detokenizer
from marft.common.token_data import Grammar
from marft.common.types import Option, SamplingParams
from marft.inference.choice_sampling import ChoiceRequest, choose
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.inference.grammar_masking import GrammarCompiler, GrammarMasker
from marft.models.backbone import Backbone
from tests.marft.models.test_models_on_gpu import FORWARDS, ROWS, tune
from tests.nights import BY_NIGHT
from tests.simulated_gpu import CUDA, counting, simulated_gpu

SLOW = pytest.mark.slow
FIXED_LAUNCHES, LAYER_LAUNCHES = 60, 40  # of an eager decoding step
MIXED: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.5, "top_p": 0.9},
    {"top_k": 5},
    {"alternatives": 3},
    {"stop": ("9 9",)},
)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with simulated_gpu():
        yield


def batch(backbone: Backbone, **options: object) -> RunningBatch:
    return RunningBatch(backbone, [2], lambda: Detokenizer(lambda ids: " ".join(map(str, ids))), **options)  # type: ignore[arg-type]


def requests(*options: dict[str, object]) -> list[DecodeRequest]:
    random = np.random.default_rng(0)
    return [
        DecodeRequest(("one", "two", None)[number % 3], ROWS[number % 3], SamplingParams(max_new_tokens=6 + number, **one),  # type: ignore[arg-type]
            random.random(6 + number, np.float32))
        for number, one in enumerate(options)
    ]  # fmt: skip


def play(batch: RunningBatch, rows: list[DecodeRequest], max_syncs: float) -> list[tuple[list[int], list[float]]]:
    """Return tokens and log-probs of all rows; a token for all rows synchronizes at most ``max_syncs`` times."""
    ask: list[Callable[[], list[RowResult]]] = [lambda: batch.admit(rows)]
    done: list[RowResult] = []
    while ask or len(batch):
        with counting("a token of every row") as counts:
            done += ask.pop()() if ask else batch.step()
        assert counts.num_syncs <= max_syncs, counts.report()
    of_row = {id(one.row): one for one in done}
    return [(of_row[id(row)].tokens.tolist(), of_row[id(row)].log_probs.tolist()) for row in rows]


@pytest.mark.parametrize("forward", ["fused", pytest.param("packed", marks=BY_NIGHT), pytest.param("own", marks=SLOW)])
@pytest.mark.parametrize("prefix_bytes", [pytest.param(0, marks=BY_NIGHT), 2**20])
def test_a_token_batch_synchronizes_once_and_draws_what_the_cpu_draws(
    backbone: Backbone, forward: str, prefix_bytes: int
) -> None:
    tune(backbone)
    for _ in range(FORWARDS.index(forward)):
        backbone.use_slower_forward()
    max_syncs = 1 if backbone.fused else float("inf")  # transformers' modules read positions in every forward
    here = play(batch(backbone, prefix_bytes=prefix_bytes), requests(*MIXED), max_syncs)
    torch.nn.Module.to(backbone.model, CUDA)
    there = play(batch(backbone, prefix_bytes=prefix_bytes), requests(*MIXED), max_syncs)
    assert [tokens for tokens, _ in there] == [tokens for tokens, _ in here]
    for (_, mine), (_, theirs) in zip(there, here, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_launches_of_a_token_batch_grow_with_layers_alone(backbone: Backbone, layers: int) -> None:
    """The bounds are today's counts: a new operation in a decoding step is a decision."""
    backbone.decoder.layers = backbone.decoder.layers[:layers]
    backbone.model.config.num_hidden_layers = layers
    torch.nn.Module.to(backbone.model, CUDA)
    running = batch(backbone)
    running.admit(
        [DecodeRequest(None, row, SamplingParams(max_new_tokens=4), np.full(4, 0.5, np.float32)) for row in ROWS]
    )
    with counting("decoding step") as counts:
        running.step()
    assert counts.num_launches <= FIXED_LAUNCHES + layers * LAYER_LAUNCHES, counts.report(40)
    assert counts.to_device.number <= 2, counts.report()


def test_grammars_do_not_synchronize(backbone: Backbone, tiny_tokenizer: object) -> None:
    grammar = Grammar("regex", "[0-9]{3}")
    tune(backbone)
    torch.nn.Module.to(backbone.model, CUDA)
    masker = GrammarMasker(GrammarCompiler.for_tokenizer(tiny_tokenizer, [2]), len(backbone.head.weight))  # type: ignore[arg-type]
    play(batch(backbone, grammar_masker=masker), requests({}, {"grammar": grammar}, {"grammar": grammar}), 1)


def test_choices_synchronize_once(backbone: Backbone) -> None:
    options: Sequence[Option] = [Option(np.arange(5, 6 + n, dtype=np.int32)) for n in range(3)]
    choices = [
        ChoiceRequest(policy, row, options, SamplingParams(temperature=t, top_p=p), 0.4)
        for policy, row in zip(("one", "two", None), ROWS, strict=True) for t, p in ((1.0, 1.0), (0.0, 0.5))
    ]  # fmt: skip
    tune(backbone)
    here = choose(backbone, choices)
    torch.nn.Module.to(backbone.model, CUDA)
    with counting("choices") as counts:
        there = choose(backbone, choices)
    assert counts.num_syncs <= 1, counts.report()
    assert [choice.chosen for choice in there] == [choice.chosen for choice in here]
