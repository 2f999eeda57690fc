"""What is sampled under a grammar is what it describes, and its log-probs are those over what was allowed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

pytest.importorskip("llguidance", reason="needs grammars: pip install 'marft[grammar]'")

from marft.common import seeds
from marft.common.token_data import Grammar, GrammarMasks
from marft.common.types import SamplingParams
from marft.config.models import ModelSettings
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.inference.detokenizer import detokenizer_factory
from marft.inference.grammar_masking import GrammarCompiler, GrammarMasker
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.log_probs import OutputHead, PackedMasks, score_tokens
from marft.models.packed_rows import PackedRows

END = 2
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "y": {"enum": ["up", "down"]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def shared(random_model: Path) -> Backbone:
    return load_backbone(ModelSettings(path=str(random_model)), torch.device("cpu"), torch.float32)


def schema(table: dict[str, Any]) -> Grammar:
    return Grammar("json", json.dumps(table))


def batch_of(backbone: Backbone, tokenizer: PreTrainedTokenizerBase) -> RunningBatch:
    holding = GrammarMasker(GrammarCompiler.for_tokenizer(tokenizer, (END,)), len(backbone.head.weight))
    return RunningBatch(backbone, (END, 0), detokenizer_factory(tokenizer, (END, 0)), grammar_masker=holding)


def row(number: int, grammar: Grammar | None, **options: Any) -> DecodeRequest:
    sampling = SamplingParams(**{"max_new_tokens": 200, "grammar": grammar, **options})
    uniforms = seeds.generator(0, "row", number).random(sampling.max_new_tokens, np.float32)
    return DecodeRequest(None, np.array([5, 6, 7 + number], np.int32), sampling, uniforms)


def sampled(batch: RunningBatch, rows: list[DecodeRequest]) -> list[RowResult]:
    done = batch.admit(rows)
    while len(batch):
        done += batch.step()
    found = {id(one.row): one for one in done}
    return [found[id(one)] for one in rows]


def said(tokenizer: PreTrainedTokenizerBase, done: RowResult) -> str:
    return str(tokenizer.decode(done.tokens[:-1].tolist()))


VALUES = st.one_of(
    st.just({"type": "integer", "minimum": -9, "maximum": 99}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "string", "maxLength": 4}),
    st.lists(st.text("abcé ", min_size=1, max_size=4), min_size=1, max_size=3, unique=True).map(lambda e: {"enum": e}),
)
SCHEMAS = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        inner.map(lambda of: {"type": "array", "items": of, "maxItems": 2}),
        st.dictionaries(st.text("ab_", min_size=1, max_size=3), inner, max_size=3).map(
            lambda of: {"type": "object", "properties": of, "required": list(of), "additionalProperties": False}
        ),
    ),
    max_leaves=4,
)


def fits(value: Any, table: dict[str, Any]) -> bool:
    """A JSON schema as it reads, for those that are drawn here."""
    if "enum" in table:
        return value in table["enum"]
    kind = table["type"]
    if kind == "object":
        of = table["properties"]
        return isinstance(value, dict) and set(value) == set(of) and all(fits(value[key], of[key]) for key in of)
    if kind == "array":
        return isinstance(value, list) and len(value) <= 2 and all(fits(one, table["items"]) for one in value)
    if kind == "integer":
        return type(value) is int and table["minimum"] <= value <= table["maximum"]
    if kind == "string":
        return isinstance(value, str) and len(value) <= table["maxLength"]
    return value is None if kind == "null" else isinstance(value, bool)


class TestSampling:
    @given(table=SCHEMAS)
    @settings(max_examples=10)
    def test_what_is_sampled_is_json_of_its_schema(
        self, table: dict[str, Any], shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        batch = batch_of(shared, tiny_tokenizer)
        for done in sampled(batch, [row(number, schema(table)) for number in range(3)]):
            assert (done.finish, done.problem, int(done.tokens[-1])) == ("stop", "", END)
            assert fits(json.loads(said(tiny_tokenizer, done)), table)

    @pytest.mark.parametrize(
        ("grammar", "expected"),
        [
            (Grammar("regex", "(yes|no)!{1,3}"), r"(yes|no)!{1,3}"),
            (Grammar("lark", 'start: "a" ("b" | "c")+ "d"'), r"a[bc]+d"),
            (schema(POINT), r'\{ ?"x" ?: ?\d{1,2} ?, ?"y" ?: ?"(up|down)" ?\}'),
        ],
    )
    @pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"temperature": 0.7}, {"top_k": 3, "top_p": 0.9}])
    def test_every_kind_of_grammar_holds_however_it_is_sampled(
        self, grammar: Grammar, expected: str, options: Any, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        (done,) = sampled(batch_of(shared, tiny_tokenizer), [row(1, grammar, **options)])
        text = said(tiny_tokenizer, done) if done.finish == "stop" else str(tiny_tokenizer.decode(done.tokens.tolist()))
        assert re.fullmatch(expected, text) or (done.finish == "length" and text.startswith("a"))

    def test_one_that_comes_to_no_end_is_cut_at_its_limit(
        self, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        (done,) = sampled(batch_of(shared, tiny_tokenizer), [row(1, schema(POINT), max_new_tokens=4)])
        assert (done.finish, len(done.tokens), done.problem) == ("length", 4, "")

    def test_neighbours_without_a_grammar_sample_what_they_would_alone(
        self, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        free = [row(number, None, max_new_tokens=20) for number in range(3)]
        mixed = sampled(
            batch_of(shared, tiny_tokenizer), [free[0], row(7, schema(POINT)), free[1], row(8, schema(POINT)), free[2]]
        )
        alone = sampled(batch_of(shared, tiny_tokenizer), free)
        for mine, other in zip(mixed[::2], alone, strict=True):
            assert np.array_equal(mine.tokens, other.tokens)
            np.testing.assert_allclose(mine.log_probs, other.log_probs, atol=2e-6)
            assert (mine.masks, mine.forced) == (None, ())

    def test_where_one_token_alone_is_allowed_it_is_forced_and_certain(
        self, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        (done,) = sampled(batch_of(shared, tiny_tokenizer), [row(1, schema({"const": 7}))])
        assert said(tiny_tokenizer, done) == "7"
        assert done.forced == (0, 1)
        assert done.masks is None
        assert done.log_probs.tolist() == [0.0, 0.0]

    def test_ids_beyond_the_tokenizers_are_never_allowed(
        self, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        holding = GrammarMasker(GrammarCompiler.for_tokenizer(tiny_tokenizer, (END,)), len(tiny_tokenizer) + 100)
        logits = torch.zeros(2, len(tiny_tokenizer) + 100)
        logits[:, -50:] = 9.0
        holding.mask_logits_(logits, [holding.new_state(Grammar("regex", "[a-z]+")), None])
        assert logits[0, len(tiny_tokenizer) :].isneginf().all()
        assert not logits[1].isneginf().any()

    def test_masks_that_are_equal_are_one_object(
        self, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        done = sampled(batch_of(shared, tiny_tokenizer), [row(n, Grammar("regex", "[a-z]{9}")) for n in range(2)])
        tables = [one.masks.table for one in done if one.masks]
        assert tables[0][0] is tables[1][0]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_learner_recomputes_the_samplers_log_probs_over_the_same_tokens(
    temperature: float, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    grammar = schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]})
    rows = [row(number, grammar, temperature=temperature) for number in range(4)]
    for done in sampled(batch_of(shared, tiny_tokenizer), rows):
        count, prompt = len(done.tokens), len(done.row.prompt)
        packed = PackedRows.from_rows([np.concatenate([done.row.prompt, done.tokens[:-1]])], [None], shared.device)
        with torch.no_grad():
            hidden = shared.hidden_states(packed)[prompt - 1 : prompt - 1 + count].double()
        assert done.masks
        free = np.setdiff1d(np.arange(count), np.array(done.forced, int))
        masks = PackedMasks.from_parts([(done.masks, done.masks.mask_indices(count)[free])], shared.device)
        scores = score_tokens(
            hidden[free], OutputHead(shared.head.weight.double()), torch.from_numpy(done.tokens[free]).long(),
            torch.full((len(free),), temperature, dtype=torch.float64), masks=masks,
        ).log_probs  # fmt: skip
        np.testing.assert_allclose(done.log_probs[free], scores.numpy(), atol=1e-5)
        assert not done.log_probs[list(done.forced)].any()


class TestRefusals:
    @pytest.mark.parametrize(
        ("grammar", "words"),
        [
            (Grammar("regex", "(a"), "unclosed group"),
            (Grammar("lark", "start: foo"), "unknown name"),
            (schema({"type": "foo"}), "Invalid type"),
            (schema({"not": {"type": "string"}}), "Unimplemented keys"),
            (schema({"$ref": "#/nope"}), "does not exist"),
            (schema({"type": "object", "patternProperties": {"^a(?=b)": {}}}), "look-around"),
        ],
    )
    def test_one_that_cannot_be_held_says_why(
        self, grammar: Grammar, words: str, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        with pytest.raises(ValueError, match=words):
            GrammarCompiler.for_tokenizer(tiny_tokenizer, (END,)).check_grammar(grammar)

    def test_a_model_without_an_end_of_turn_is_refused(self, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
        with pytest.raises(ValueError, match="no end-of-turn token"):
            GrammarCompiler.for_tokenizer(tiny_tokenizer, ()).check_grammar(schema(POINT))

    def test_a_grammar_that_breaks_off_ends_its_own_row(
        self, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        batch = batch_of(shared, tiny_tokenizer)
        assert batch.grammar_masker
        rows = [row(1, Grammar("regex", "[a-z]{20}")), row(2, Grammar("regex", "[a-z]{5}"))]
        done = batch.admit(rows)
        batch.live[0].grammar.matcher.consume_token(0)  # type: ignore[union-attr]  # which it does not allow for
        while len(batch):
            done += batch.step()
        first, second = ({id(one.row): one for one in done}[id(one)] for one in rows)
        assert first.problem
        assert len(first.tokens) == 2
        assert (second.problem, second.finish) == ("", "stop")

    def test_one_that_allows_for_nothing_ends_its_own_row_at_once_and_is_forgotten(
        self, shared: Backbone, tiny_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known, asked = GrammarCompiler.next_token_masks, list[int]()

        def next_tokens(self: GrammarCompiler, matchers: Any) -> Any:
            asked.append(len(matchers))
            found = known(self, matchers).copy()
            if len(asked) == 2:  # after the first token
                found[0] = 0
            return found

        batch = batch_of(shared, tiny_tokenizer)
        rows = [row(1, Grammar("regex", "[a-z]{20}")), row(2, Grammar("regex", "[a-z]{5}"))]
        for one in rows:
            GrammarCompiler.for_tokenizer(tiny_tokenizer, (END,)).check_grammar(
                one.sampling.grammar
            )  # which looks at the first tokens, once
        monkeypatch.setattr(GrammarCompiler, "next_token_masks", next_tokens)
        first, second = sampled(batch, rows)
        assert (first.problem, len(first.tokens)) == ("its grammar allows for no token", 2)
        assert np.isfinite(first.log_probs).all()
        assert (second.problem, second.finish) == ("", "stop")
        assert re.fullmatch("[a-z]{5}", said(tiny_tokenizer, second))
        assert not batch.live


def test_masks_of_turns_one_after_the_other_keep_their_places() -> None:
    one, other = GrammarMasks.from_masks([0, 2], [b"\x06", b"\x05"]), GrammarMasks.from_masks([1], [b"\x06"])
    joined = GrammarMasks.concatenate([(0, one), (5, other)])
    assert joined
    assert (joined.at.tolist(), [joined.table[n] for n in joined.which]) == ([0, 2, 6], [b"\x06", b"\x05", b"\x06"])
    assert GrammarMasks.concatenate([]) is None
