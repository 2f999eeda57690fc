"""Texts that an engine apart holds to a grammar: what it is told, and what was allowed for, which is found out here.

Both sides ask the same llguidance for the same tokens, so what one allows for the other does: it need not be sent.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from transformers import PreTrainedTokenizerBase

from marft.common.errors import RowFailedError, RunError
from marft.common.marks import Grammar
from marft.common.types import Completion
from marft.inference.holding import Holding


def told(tokenizer: PreTrainedTokenizerBase, holding: Holding) -> tuple[str, str]:
    """What an engine must know to hold texts to grammars as we do → the tokenizer as JSON, and the token that ends a
    turn; nothing where no text can be held to one."""
    try:
        holding.grammars.check(Grammar("regex", "a"))
    except ValueError:
        return "", ""
    assert holding.grammars.end is not None, "checked just now"
    return str(tokenizer.backend_tokenizer.to_str()), str(tokenizer.convert_ids_to_tokens(holding.grammars.end))


def check_alike(theirs: str) -> None:
    """
    Args:
        theirs: the version of llguidance that an engine holds texts to grammars with; "": it holds none.

    Raises:
        RunError: it is not ours, and may allow for something else.
    """
    ours = version("llguidance")
    if theirs != ours:
        raise RunError(
            f"the engine's llguidance is {theirs or 'none'}, and that of this run {ours}, which may allow a grammar "
            f"something else: install it where the engine is:  pip install --no-deps llguidance=={ours}"
        )


def with_masks(completion: Completion, grammar: Grammar, holding: Holding) -> Completion:
    """What was sampled under a grammar, with what that allowed for at each place.

    Raises:
        RowFailedError: it did not allow for what was sampled.
    """
    text = holding.begin(grammar)
    for place, token in enumerate(completion.tokens.tolist()):
        holding.allow([text])
        text.take(token)
        if text.problem:
            said = f"a text could not be held to its grammar: at its token {place}, {text.problem}"
            raise RowFailedError(said, form=True)
    return replace(completion, masks=text.masks(), forced=tuple(text.forced))
