"""Evolution over sentences of a given pool, without a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field, Strict

from marft.config.settings import Fraction, SmallCount
from marft_lab.prompt_optimization.proposals import Proposal, ProposalRequest, Proposer

MAX_ATTEMPTS = 20  # attempts per proposal until a proposal is new
SENTENCE = re.compile(r"(?<=[.!?])\s+")
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Sentences = tuple[str, ...]


class GeneticSentenceProposer(Proposer):
    """Genetic algorithm over sentences.

    An edit adds a sentence from a pool, or removes, replaces or moves a sentence. A crossover joins sentences of two
    versions. The proposer needs no model and no attempts. The genetic algorithm is EvoPrompt's (Guo et al. 2024), with
    sentence edits instead of model edits.
    """

    sentences: Annotated[tuple[Text, ...], Strict(False), Field(min_length=1)] = Field(description="pool of sentences")
    max_sentences: SmallCount = Field(default=4, description="maximum sentences of a proposal")
    parents: SmallCount = Field(default=4, description="number of best versions to use as parents")
    crossover: Fraction = Field(default=0.25, description="fraction of proposals with two parents")

    def propose(self, request: ProposalRequest) -> list[Proposal]:
        """Return up to ``request.count`` new proposals."""
        seen, proposals = {"", *(version.instructions for version in request.versions)}, list[Proposal]()
        for _ in range(MAX_ATTEMPTS * request.count):
            proposal = self._sample_proposal(request)
            if len(proposals) < request.count and proposal.instructions not in seen:
                seen.add(proposal.instructions)
                proposals.append(proposal)
        return proposals

    def _sample_proposal(self, request: ProposalRequest) -> Proposal:
        rng, best = request.rng, request.versions[: self.parents]
        first = best[int(rng.integers(len(best)))]
        if len(best) > 1 and rng.random() < self.crossover:
            second = best[int(rng.integers(len(best)))]
            text = cross_over(split_sentences(first.instructions), split_sentences(second.instructions), rng)
            parents, kind = tuple(dict.fromkeys((first.number, second.number))), "crossover"
        else:
            text = mutate(split_sentences(first.instructions), self.sentences, rng)
            parents, kind = (first.number,), "mutation"
        return Proposal(" ".join(text[: self.max_sentences]), parents, kind)


def split_sentences(text: str) -> Sentences:
    """Split a text into sentences.

    >>> split_sentences("Add up. Then say so!")
    ('Add up.', 'Then say so!')
    """
    return tuple(part for part in SENTENCE.split(text.strip()) if part)


def mutate(sentences: Sentences, pool: Sequence[str], rng: np.random.Generator) -> Sentences:
    """Return sentences after one random edit: add, replace, remove or move.

    Duplicates are removed. An empty text always gets a sentence.
    """
    new = pool[int(rng.integers(len(pool)))]
    kind = ("add", "replace", "remove", "move")[int(rng.integers(4))] if sentences else "add"
    index = int(rng.integers(len(sentences))) if sentences else 0
    others = [*sentences[:index], *sentences[index + 1 :]]
    if kind == "remove":
        return tuple(others)
    inserted = sentences[index] if kind == "move" else new
    base = list(sentences) if kind == "add" else others
    position = index if kind == "replace" else int(rng.integers(len(base) + 1))
    return tuple(dict.fromkeys([*base[:position], inserted, *base[position:]]))


def cross_over(first: Sentences, second: Sentences, rng: np.random.Generator) -> Sentences:
    """Join a text's first sentences with another text's last sentences, without duplicates."""
    first_end, second_start = int(rng.integers(len(first) + 1)), int(rng.integers(len(second) + 1))
    return tuple(dict.fromkeys([*first[:first_end], *second[second_start:]]))
