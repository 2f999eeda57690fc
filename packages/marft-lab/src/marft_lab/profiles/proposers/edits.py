"""Evolution over sentences of a given pool, without a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field, Strict

from marft.config.parts import ProposerPart
from marft.config.settings import Few, Fraction
from marft_lab.profiles.proposals import Asked, Proposal

TRIES = 20  # attempts per proposal until a proposal is new
SENTENCE = re.compile(r"(?<=[.!?])\s+")
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Sentences = tuple[str, ...]


class Edits(ProposerPart):
    """Genetic algorithm over sentences.

    An edit adds a sentence from a pool, or removes, replaces or moves a sentence. A crossover joins sentences of two
    versions. The proposer needs no model and no attempts. The genetic algorithm is EvoPrompt's (Guo et al. 2024), with
    sentence edits instead of model edits.
    """

    sentences: Annotated[tuple[Text, ...], Strict(False), Field(min_length=1)]  # pool of sentences
    longest: Few = 4  # maximum sentences of a proposal
    parents: Few = 4  # number of best versions to use as parents
    crossover: Fraction = 0.25  # fraction of proposals with two parents

    def propose(self, asked: Asked) -> list[Proposal]:
        """Return up to ``asked.count`` new proposals."""
        known, found = {"", *(version.instructions for version in asked.versions)}, list[Proposal]()
        for _ in range(TRIES * asked.count):
            proposal = self._drawn(asked)
            if len(found) < asked.count and proposal.instructions not in known:
                known.add(proposal.instructions)
                found.append(proposal)
        return found

    def _drawn(self, asked: Asked) -> Proposal:
        rng, best = asked.rng, asked.versions[: self.parents]
        first = best[int(rng.integers(len(best)))]
        if len(best) > 1 and rng.random() < self.crossover:
            second = best[int(rng.integers(len(best)))]
            text = crossed(sentences_of(first.instructions), sentences_of(second.instructions), rng)
            parents, how = tuple(dict.fromkeys((first.number, second.number))), "crossover"
        else:
            text = mutated(sentences_of(first.instructions), self.sentences, rng)
            parents, how = (first.number,), "mutation"
        return Proposal(" ".join(text[: self.longest]), parents, how)


def sentences_of(text: str) -> Sentences:
    """Split a text into sentences.

    >>> sentences_of("Add up. Then say so!")
    ('Add up.', 'Then say so!')
    """
    return tuple(part for part in SENTENCE.split(text.strip()) if part)


def mutated(sentences: Sentences, pool: Sequence[str], rng: np.random.Generator) -> Sentences:
    """Return sentences after one random edit: add, replace, remove or move.

    Duplicates are removed. An empty text always gets a sentence.
    """
    new = pool[int(rng.integers(len(pool)))]
    kind = ("add", "replace", "remove", "move")[int(rng.integers(4))] if sentences else "add"
    at = int(rng.integers(len(sentences))) if sentences else 0
    rest = [*sentences[:at], *sentences[at + 1 :]]
    if kind == "remove":
        return tuple(rest)
    added = sentences[at] if kind == "move" else new
    kept = list(sentences) if kind == "add" else rest
    place = at if kind == "replace" else int(rng.integers(len(kept) + 1))
    return tuple(dict.fromkeys([*kept[:place], added, *kept[place:]]))


def crossed(first: Sentences, second: Sentences, rng: np.random.Generator) -> Sentences:
    """Join a text's first sentences with another text's last sentences, without duplicates."""
    ahead, after = int(rng.integers(len(first) + 1)), int(rng.integers(len(second) + 1))
    return tuple(dict.fromkeys([*first[:ahead], *second[after:]]))
