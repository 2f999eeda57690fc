"""Small models of worlds: how they are made, and what comes with the package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from marft.config.bundled import bundled_models, bundled_names, resolve_path
from marft.config.load import load_recipe
from tests.sources import ROOT

WORLDS = sorted(set(bundled_models()) - {"tiny", "tiny-tools", "tiny-textarena"})
TEXT = "key one red, box two blue, door six pink, hall ten gray, key"


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "tiny"))


def tokenizer() -> PreTrainedTokenizerFast:
    from checkpoint import train_tokenizer

    return train_tokenizer([TEXT] * 50, "", 512, spaces_apart=True)


def attentions(ids: Sequence[int], words: PreTrainedTokenizerFast) -> list[torch.Tensor]:
    """What each head of a model that is only begun looks at: of each layer [heads, T, T]."""
    from checkpoint import build_model, wire_copying

    torch.manual_seed(0)
    model = build_model(3, 128, 384, words)
    wire_copying(model, seed=0)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found: Any = model.eval()(torch.tensor([ids]), output_attentions=True).attentions
    return [layer[0] for layer in found]


def test_heads_of_the_first_layer_begin_by_looking_2_5_1_and_3_tokens_back() -> None:
    words = tokenizer()
    ids = words.encode(TEXT)
    first = attentions(ids, words)[0]
    for head, back in enumerate((2, 5, 1, 3)):
        for reader in range(8, len(ids)):
            assert first[head, reader].argmax() == reader - back
            assert first[head, reader, reader - back] > 0.5


def test_heads_after_it_find_what_follows_an_earlier_copy() -> None:
    words = tokenizer()
    ids = words.encode(TEXT)
    last, earlier = len(ids) - 1, 0
    assert ids[last] == ids[earlier]
    for layer in attentions(ids, words)[1:2]:
        for head in (2, 3):
            assert layer[head, last, earlier + 1] > 3 / len(ids)


@pytest.mark.parametrize(("layers", "hidden"), [(1, 128), (2, 192)])
def test_copying_needs_four_heads_and_a_second_layer(layers: int, hidden: int) -> None:
    from checkpoint import build_model, wire_copying

    with pytest.raises(ValueError, match="four heads of at least two layers"):
        wire_copying(build_model(layers, hidden, 64, tokenizer()), seed=0)


def test_what_is_looked_up_is_in_the_table_behind_its_key() -> None:
    from practice import lookups

    words, random = ["red", "box", "key", "hall", "door", "ten", "corn", "rice", "owl"], Random(0)
    for _ in range(50):
        table, *turns = lookups(words, random)
        for asked, said in zip(turns[::2], turns[1::2], strict=True):
            key = asked["content"].split()[-1]
            assert re.search(rf"\b{key}( |: | is ){said['content']}\b", table["content"])


def test_what_is_to_be_repeated_ends_what_was_shown() -> None:
    from practice import copies

    for turns in (copies(["red", "box"], Random(seed)) for seed in range(50)):
        for asked, said in zip(turns[::2], turns[1::2], strict=True):
            assert asked["content"].endswith(said["content"])


def test_what_is_searched_for_is_the_whole_question() -> None:
    from practice import searches

    words = ["Red", "Box", "Kay", "who", "is", "the", "of"]
    for turns in (searches(words, Random(seed)) for seed in range(50)):
        for asked, said in zip(turns[::2], turns[1::2], strict=True):
            (call,) = said["tool_calls"]
            assert call["function"] == {"name": "search", "arguments": {"query": asked["content"]}}


def test_practice_is_the_same_under_a_seed_and_never_ends() -> None:
    from practice import practice, words_of

    words = words_of(["the red box, the key 7", "red box"], count=3)
    assert words == ["box", "red", "the"]
    words = ["red", "box", "key", "hall", "door", "ten", "corn", "rice"]
    one, other = (list(islice(practice(words, Random(3)), 40)) for _ in range(2))
    assert one == other
    assert one != list(islice(practice(words, Random(4)), 40))


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_has_a_model_of_at_most_2_mb_that_its_recipes_name(name: str) -> None:
    folder = Path(resolve_path(name))
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 2_000_000
    world = name.removeprefix("tiny-").replace("-", "_")
    for recipe in {world, f"{world}_single"} & set(bundled_names()):
        assert {model.path for model in load_recipe(recipe).models.values()} == {name}


@pytest.mark.parametrize("name", WORLDS)
def test_a_word_is_the_same_tokens_with_a_space_before_it(name: str) -> None:
    words = AutoTokenizer.from_pretrained(resolve_path(name))
    for word in ("user", "You", "are", "message", "zebra"):
        alone = words.encode(word, add_special_tokens=False)
        after = words.encode(f"a {word}", add_special_tokens=False)
        assert after[-len(alone) :] == alone
        assert words.decode(after) == f"a {word}"
