"""Token count for a fully rendered chat."""

from __future__ import annotations

from marft.agents.chat import Chat, ChatRefusedError
from marft.agents.chat_history import CHARACTERS_PER_TOKEN, MAX_MESSAGES
from marft.agents.prompt_messages import Renderer


def count_chat_tokens(renderer: Renderer, policy: str, chat: Chat) -> int:
    """Return the number of tokens in a chat, its tools and the opening of the next turn.

    The count includes the client's beginning of that turn.

    Raises:
        ChatRefusedError: the chat template cannot render the chat, or the chat far exceeds the model's context.
    """
    context = renderer.context(policy)
    size = sum(len(str(message["content"])) for message in chat.messages) + len(chat.prefix)
    if size > CHARACTERS_PER_TOKEN * context or len(chat.messages) > MAX_MESSAGES:
        raise ChatRefusedError("too_long", f"This model's maximum context length is {context} tokens.")
    try:
        count = len(renderer.start(policy, list(chat.messages), chat.tools))
        return count + (len(renderer.encode_prefix(policy, chat.prefix)) if chat.prefix else 0)
    except ValueError as error:
        raise ChatRefusedError("invalid", str(error)) from error
