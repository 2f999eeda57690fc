"""Grammar support for subprocess engines: setup data for the engine, and masks recomputed in this process.

Both sides use the same llguidance version and the same tokenizer, so both get the same masks. The engine need not send
them.
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
    """Return the tokenizer as JSON and the end-of-turn token, for an engine with grammar support.

    Both are "" if the policy does not support grammars.
    """
    try:
        holding.grammars.check(Grammar("regex", "a"))
    except ValueError:
        return "", ""
    assert holding.grammars.end is not None, "checked just now"
    return str(tokenizer.backend_tokenizer.to_str()), str(tokenizer.convert_ids_to_tokens(holding.grammars.end))


def check_alike(theirs: str) -> None:
    """Check for the same llguidance version on both sides.

    Args:
        theirs: the engine's llguidance version; "": the engine does not support grammars.

    Raises:
        RunError: the version differs, so its masks may differ.
    """
    ours = version("llguidance")
    if theirs != ours:
        raise RunError(
            f"the engine's llguidance is {theirs or 'none'}, and that of this run {ours}, which may allow a grammar "
            f"something else: install it where the engine is:  pip install --no-deps llguidance=={ours}"
        )


def with_masks(completion: Completion, grammar: Grammar, holding: Holding) -> Completion:
    """Add the grammar masks to a completion by replaying its tokens.

    Raises:
        RowFailedError: the grammar does not allow a sampled token.
    """
    text = holding.begin(grammar)
    for place, token in enumerate(completion.tokens.tolist()):
        holding.allow([text])
        text.take(token)
        if text.problem:
            said = f"a text could not be held to its grammar: at its token {place}, {text.problem}"
            raise RowFailedError(said, form=True)
    return replace(completion, masks=text.masks(), forced=tuple(text.forced))
