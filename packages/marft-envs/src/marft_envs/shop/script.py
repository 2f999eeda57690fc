"""Scripted policy for the shop that uses only its pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from marft.envs.scripts import Cue
from marft_envs.shop.catalogue import Style
from marft_envs.shop.goals import Goal
from marft_envs.shop.pages import BACK, BUY, DESCRIPTION, FEATURES, NEXT, PREVIOUS
from marft_envs.shop.session import read
from marft_envs.shop.words import PLAIN_KINDS

_ROW = re.compile(r"^\[(\d+)\] (.+) \$([\d.]+)$", re.MULTILINE)
_PRODUCT = re.compile(r"^(.+ (\d+)) \$[\d.]+$", re.MULTILINE)
_PART = re.compile(rf"^(.+ (\d+)): ({FEATURES}|{DESCRIPTION})\n((?:.|\n)*?)\n\[", re.MULTILINE)
_OPTIONS = re.compile(r"^\w+: (\[.+\])(?: chosen: (.+))?$", re.MULTILINE)
_BUTTON = re.compile(r"\[([^\[\]]+)\]")
_MESSAGE = re.compile(r"Message from \w+:\n(.+)")
_SAID = (
    (re.compile(r"^Find (.+)\.$"), "search"), (re.compile(r"^Take (\d+)\.$"), "click"),
    (re.compile(r"^Choose (.+)\.$"), "click"), (re.compile(r"^Click (.+)\.$"), "click"),
)  # fmt: skip


@dataclass(frozen=True)
class Shopper:
    """Scripted policy for ``searcher``, ``buyer`` and ``solver``.

    ``searcher`` sees the wanted product and suggests the next action, ``buyer`` performs it, and ``solver`` does both.

    Args:
        skill: fraction of well-played turns.
        style: kind of product names.
    """

    skill: float
    style: Style

    def __call__(self, cue: Cue) -> str:
        """Return the agent's text."""
        good = cue.random.random() < self.skill
        goal = Goal.of(cue.task.data["goal"])
        if cue.role == "buyer":
            return self._obeyed(cue) if good else _aimless(cue)
        if cue.role == "searcher":
            return _spoken(*self._best(goal, cue)) if good else _vague(goal, cue.random)
        verb, words = self._best(goal, cue)
        return _offered(f"{verb}[{words}]", cue) if good else _aimless(cue)

    def _best(self, goal: Goal, cue: Cue) -> tuple[str, str]:
        """Return the best next action, from the pages seen so far."""
        page = cue.shown
        before = [str(message["content"]) for message in cue.chat if message["role"] == "user"][:-1]
        if _PART.search(page):
            return "click", PREVIOUS
        product = _PRODUCT.search(page)
        if product:
            return "click", self._at_product(goal, page, product[2], product[1], before)
        if "\n[" not in page:
            return "search", " ".join((*goal.attributes, goal.noun))
        seen = {found[2] for text in before for found in _PRODUCT.finditer(text)}
        if self.style == "plain":
            seen = set()  # products are clicked by row there
        for number, name, price in _ROW.findall(page):
            told = self.style == "full" or all(attribute in name for attribute in goal.attributes)
            if (
                number not in seen
                and goal.noun in name.replace(",", "").split()
                and float(price) <= goal.price_upper
                and told
            ):
                return "click", number
        return "click", NEXT if f"[{NEXT}]" in page else BACK

    def _at_product(self, goal: Goal, page: str, number: str, title: str, before: Sequence[str]) -> str:
        read_parts = {part[3]: part[4] for text in before for part in _PART.finditer(text) if part[2] == number}
        known = " ".join((title, *read_parts.values())).lower()
        lacks = [attribute for attribute in goal.attributes if attribute not in known]
        if lacks:
            unread = [part for part in (FEATURES, DESCRIPTION) if part not in read_parts]
            return unread[0] if unread else PREVIOUS
        rows = _OPTIONS.findall(page)
        offered = {value for row, _ in rows for value in _BUTTON.findall(row)}
        chosen = {picked for _, picked in rows}
        wanted = [value for value in goal.options.values() if value not in chosen]
        if any(value not in offered for value in wanted):
            return PREVIOUS
        return wanted[0] if wanted else BUY

    def _obeyed(self, cue: Cue) -> str:
        """Perform the action in the message; without a usable message, guess."""
        message = _MESSAGE.search(cue.shown)
        said = message[1] if message else ""
        for pattern, verb in _SAID:
            found = pattern.match(said)
            if found:
                return _offered(f"{verb}[{found[1].lower()}]", cue)
        return _aimless(cue)


def _spoken(verb: str, words: str) -> str:
    if verb == "search":
        return f"Find {words}."
    if words.isdecimal():
        return f"Take {words}."
    return f"Click {words}." if words in (BACK, BUY, DESCRIPTION, FEATURES, NEXT, PREVIOUS) else f"Choose {words}."


def _vague(goal: Goal, random: Random) -> str:
    """Return a weak searcher's text: the kind of product, or nothing useful."""
    return random.choice((f"A {goal.noun}.", "Look around."))


def _aimless(cue: Cue) -> str:
    """Return a random legal action, regardless of messages."""
    if cue.options:
        return cue.random.choice(cue.options)
    buttons = list(_buttons(cue.shown))
    if not buttons:
        return f"search[{cue.random.choice(PLAIN_KINDS).noun}]"
    return f"click[{cue.random.choice(buttons)}]"


def _buttons(page: str) -> Iterator[str]:
    for row in page.split("\n\n")[0].splitlines():
        yield from _BUTTON.findall(row)


def _offered(action: str, cue: Cue) -> str:
    """Return the action, or the most similar option."""
    if not cue.options or action in cue.options:
        return action
    words = set(read(action).words.split())
    return max(cue.options, key=lambda option: len(words & set(read(option).words.split())))
