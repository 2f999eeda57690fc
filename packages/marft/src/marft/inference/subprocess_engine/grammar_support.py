"""Grammar support for subprocess engines: setup data for the engine, and masks recomputed in this process.

Both sides use the same llguidance version and the same tokenizer, so both get the same masks. The engine need not send
them.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from transformers import PreTrainedTokenizerBase

from marft.common.errors import RowFailedError, RunError
from marft.common.token_data import Grammar
from marft.common.types import Completion
from marft.inference.grammar_masking import GrammarMasker


def grammar_setup(tokenizer: PreTrainedTokenizerBase, masker: GrammarMasker) -> tuple[str, str]:
    """Return the tokenizer as JSON and the end-of-turn token, for an engine with grammar support.

    Both are "" if the policy does not support grammars.
    """
    try:
        masker.compiler.check(Grammar("regex", "a"))
    except ValueError:
        return "", ""
    assert masker.compiler.end_token is not None, "checked just now"
    return str(tokenizer.backend_tokenizer.to_str()), str(tokenizer.convert_ids_to_tokens(masker.compiler.end_token))


def check_same_version(engine_version: str) -> None:
    """Check for the same llguidance version on both sides.

    Args:
        engine_version: the engine's llguidance version; "": the engine does not support grammars.

    Raises:
        RunError: the version differs, so its masks may differ.
    """
    own_version = version("llguidance")
    if engine_version != own_version:
        raise RunError(
            f"the engine's llguidance is {engine_version or 'none'}, and that of this run {own_version}, which may "
            "allow a grammar something else: install it where the engine is:  pip install --no-deps "
            f"llguidance=={own_version}"
        )


def add_masks(completion: Completion, grammar: Grammar, masker: GrammarMasker) -> Completion:
    """Add the grammar masks to a completion by replaying its tokens.

    Raises:
        RowFailedError: the grammar does not allow a sampled token.
    """
    state = masker.new_state(grammar)
    for index, token in enumerate(completion.tokens.tolist()):
        masker.set_masks([state])
        state.add_token(token)
        if state.problem:
            message = f"a text could not be held to its grammar: at its token {index}, {state.problem}"
            raise RowFailedError(message, grammar_failed=True)
    return replace(completion, masks=state.build_masks(), forced=tuple(state.forced))
