"""Texts that an engine apart holds to a grammar: what it is told, and what was allowed for, which is found out here.

Both sides ask llguidance the same of the same tokens, so what one allows for the other does: it need not be sent.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from marft.engines.grammars import schema_text
from marft.engines.holding import Holding
from marft.errors import RunError
from marft.game.game import EpisodeFailedError
from marft.marks import Grammar
from marft.types import Completion


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, holding: Holding, folder: Path) -> str:
    """Write a tokenizer whose texts end with the token that ends a turn → its folder, or "" where no text of it can be
    held to a grammar."""
    try:
        holding.grammars.check(Grammar("regex", "a"))
    except ValueError:
        return ""
    assert holding.grammars.end is not None, "checked just now"
    written = deepcopy(tokenizer)
    written.eos_token = written.convert_ids_to_tokens(holding.grammars.end)
    written.save_pretrained(folder)
    return str(folder)


def check_alike(engine: str, theirs: str) -> None:
    """
    Args:
        theirs: the version of llguidance that an engine holds texts to grammars with; "": it holds none.

    Raises:
        RunError: it is not ours, and may allow for something else.
    """
    ours = version("llguidance")
    if theirs != ours:
        raise RunError(
            f"{engine}: its llguidance is {theirs or 'none'}, and that of this run {ours}, which may allow a "
            f"grammar something else: install it where the engine is:  pip install --no-deps llguidance=={ours}"
        )


def told(grammar: Grammar | None) -> list[str]:
    """A grammar for an engine: its kind and its text; nothing where there is none."""
    if grammar is None:
        return []
    return [grammar.kind, schema_text(json.loads(grammar.text)) if grammar.kind == "json" else grammar.text]


def with_masks(completion: Completion, grammar: Grammar, holding: Holding) -> Completion:
    """What was sampled under a grammar, with what that allowed for at each place.

    Raises:
        EpisodeFailedError: it did not allow for what was sampled.
    """
    text = holding.begin(grammar)
    for place, token in enumerate(completion.tokens.tolist()):
        holding.allow([text])
        text.take(token)
        if text.problem:
            said = f"a text could not be held to its grammar: at its token {place}, {text.problem}"
            raise EpisodeFailedError("failed", said)
    return replace(completion, masks=text.masks(), forced=tuple(text.forced))
