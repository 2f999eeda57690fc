"""Which tokens nobody can write into a chat: those that begin and end its messages, not those that mark thoughts.

A chat is tokenised with the control tokens in what somebody wrote as plain text. Were the marks of thoughts among them,
an agent's own earlier turn would not be found to have a thought, and be shown otherwise than its template says.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from marft.thoughts import BEGINS, ENDS

THOUGHTS = (BEGINS, ENDS)


def leave_thoughts(tokenizer: PreTrainedTokenizerBase) -> None:
    """Take marks of thoughts from the tokens that are text where somebody wrote them, but for special ones."""
    template = tokenizer.chat_template
    text = "".join(template.values()) if isinstance(template, dict) else str(template)
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values()]
    tokenizer.chat_control_tokens = [
        token for token in tokens if token in text and not token.isspace() and token not in THOUGHTS
    ]
