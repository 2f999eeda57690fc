"""What of a turn's text is a thought: what a model writes for itself, before what it says."""

from __future__ import annotations

BEGINS, ENDS = "<think>", "</think>"


def thought(text: str, begun: bool = False) -> int:
    """How many of a text's first characters are a thought, and the space after it.

    A thought that has no end is all there is: nothing was said yet.

    >>> text = "<think>\\nHm.\\n</think>\\n\\nIt is 3."
    >>> text[thought(text):]
    'It is 3.'
    >>> thought("It is 3."), thought("Hm", begun=True)
    (0, 2)

    Args:
        begun: whether the text goes on from a thought that the prompt begins.
    """
    end = text.rfind(ENDS)
    if end >= 0:
        said = text[end + len(ENDS) :]
        return len(text) - len(said.lstrip())
    return len(text) if begun or text.lstrip().startswith(BEGINS) else 0
