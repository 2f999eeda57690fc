"""What of a turn's text is a thought: what a model writes for itself, before what it says."""

from __future__ import annotations

from dataclasses import dataclass

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


def first_thought(text: str, begun: bool) -> int:
    """How many of a text's first characters are a thought that it begins with, up to the first mark that ends one: what
    comes after that may hold such marks as it likes, in the arguments of a call.

    >>> first_thought("<think>Hm.</think>{}", False), first_thought("<think>Hm.", False), first_thought("{}", False)
    (18, 10, 0)
    """
    if not (begun or text.lstrip().startswith(BEGINS)):
        return 0
    end = text.find(ENDS)
    return len(text) if end < 0 else end + len(ENDS)


def thinking_after(text: str, begun: bool) -> bool:
    """Whether a thought goes on where a text ends."""
    begins, ends = text.rfind(BEGINS), text.rfind(ENDS)
    return begun if begins == ends else begins > ends


@dataclass(frozen=True, slots=True)
class Said:
    """A mark that counts where it is said, and not in a thought.

    >>> Said("</call>", begun=False).find("<think><call>1</call></think><call>2</call>")
    36

    Args:
        begun: whether texts go on from a thought that the prompt begins.
    """

    text: str
    begun: bool

    def find(self, text: str) -> int:
        """Where a text says it first; -1 where it does not."""
        at, thinking = 0, self.begun
        while True:
            if thinking:
                end = text.find(ENDS, at)
                if end < 0:
                    return -1
                at = end + len(ENDS)
            found, begins = text.find(self.text, at), text.find(BEGINS, at)
            if found < 0 or begins < 0 or found < begins:
                return found
            at, thinking = begins + len(BEGINS), True
