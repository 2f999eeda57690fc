"""What grammars allowed for where an engine apart has sampled: found out here, as the in-process engine has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="needs grammars: pip install 'marft[grammar]'")

from marft.common.errors import EpisodeFailedError, RunError
from marft.common.token_data import Grammar
from marft.common.types import ActionKey, Completion, Prompt, SamplingParams
from marft.inference import grammar_masking as grammar_support
from marft.inference.grammar_masking import GrammarCompiler, GrammarMasker
from marft.rollout.local_runner import LocalRolloutRunner
from tests.helpers import settings

NUMBER = Grammar("regex", r"[0-9]{1,3}(\+[0-9]{1,3})?")
PROMPT = Prompt(np.arange(5, 29, dtype=np.int32))
OTHERS = [
    Grammar("json", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
    Grammar("lark", 'start: "the " /[a-z]{1,9}/'),
]


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRolloutRunner]:
    with LocalRolloutRunner(settings("tiny", tmp_path_factory.mktemp("run"))) as rollouts:
        yield rollouts


def holding(rollouts: LocalRolloutRunner) -> GrammarMasker:
    policy = rollouts.models.policies["actor"]
    return GrammarMasker(
        GrammarCompiler.for_tokenizer(policy.tokenizer, policy.stop_ids), len(policy.backbone.head.weight)
    )


def sampled(rollouts: LocalRolloutRunner, grammar: Grammar) -> Completion:
    sampling = SamplingParams(max_new_tokens=12, grammar=grammar)
    return rollouts.wait_for(rollouts.engine.sample("actor", PROMPT, sampling, ActionKey("s", "t", 0, 0, "actor", 0)))


@pytest.mark.parametrize("grammar", [NUMBER, *OTHERS], ids=lambda grammar: grammar.kind)
def test_it_is_what_the_in_process_engine_says(rollouts: LocalRolloutRunner, grammar: Grammar) -> None:
    said = sampled(rollouts, grammar)
    found = grammar_support.add_masks(replace(said, masks=None, forced=()), grammar, holding(rollouts))
    assert found.forced == said.forced
    assert said.masks
    assert found.masks
    assert found.masks.table == said.masks.table
    assert (found.masks.at.tolist(), found.masks.which.tolist()) == (said.masks.at.tolist(), said.masks.which.tolist())


def test_what_was_not_allowed_for_is_not_learned_from(rollouts: LocalRolloutRunner) -> None:
    with pytest.raises(EpisodeFailedError, match="could not be held to its grammar: at its token 0"):
        grammar_support.add_masks(sampled(rollouts, OTHERS[1]), NUMBER, holding(rollouts))


def test_an_engine_is_told_the_tokenizer_and_what_ends_a_turn(rollouts: LocalRolloutRunner) -> None:
    tokenizer = rollouts.models.policies["actor"].tokenizer
    text, end = grammar_support.grammar_setup(tokenizer, holding(rollouts))
    assert '"model"' in text
    assert tokenizer.convert_tokens_to_ids(end) == rollouts.models.policies["actor"].stop_ids[0]


def test_a_model_without_an_end_of_turn_is_held_to_nothing(rollouts: LocalRolloutRunner) -> None:
    tokenizer = rollouts.models.policies["actor"].tokenizer
    assert grammar_support.grammar_setup(tokenizer, GrammarMasker(GrammarCompiler(tokenizer, None), 8)) == ("", "")


@pytest.mark.parametrize("theirs", ["1.0.0", ""])
def test_another_version_of_llguidance_is_refused_with_the_remedy(theirs: str) -> None:
    with pytest.raises(RunError, match=rf"llguidance is {theirs or 'none'}, .* pip install --no-deps llguidance=="):
        grammar_support.check_same_version(theirs)
