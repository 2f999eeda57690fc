"""Scripted policy for the shop that uses only its pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from marft.envs.scripted_policy import PolicyInput
from marft_envs.shop.catalog import Style
from marft_envs.shop.goals import Goal
from marft_envs.shop.pages import BACK, BUY, DESCRIPTION, FEATURES, NEXT, PREVIOUS
from marft_envs.shop.session import parse_action
from marft_envs.shop.vocabulary import PLAIN_PRODUCT_KINDS

_ROW = re.compile(r"^\[(\d+)\] (.+) \$([\d.]+)$", re.MULTILINE)
_PRODUCT = re.compile(r"^(.+ (\d+)) \$[\d.]+$", re.MULTILINE)
_PART = re.compile(rf"^(.+ (\d+)): ({FEATURES}|{DESCRIPTION})\n((?:.|\n)*?)\n\[", re.MULTILINE)
_OPTIONS = re.compile(r"^\w+: (\[.+\])(?: chosen: (.+))?$", re.MULTILINE)
_BUTTON = re.compile(r"\[([^\[\]]+)\]")
_MESSAGE = re.compile(r"Message from \w+:\n(.+)")
_SUGGESTIONS = (
    (re.compile(r"^Find (.+)\.$"), "search"),
    (re.compile(r"^Take (\d+)\.$"), "click"),
    (re.compile(r"^Choose (.+)\.$"), "click"),
    (re.compile(r"^Click (.+)\.$"), "click"),
)


@dataclass(frozen=True)
class ShopScript:
    """Scripted policy for ``searcher``, ``buyer`` and ``solver``.

    ``searcher`` sees the wanted product and suggests the next action, ``buyer`` performs it, and ``solver`` does both.

    Args:
        skill: fraction of well-played turns.
        style: kind of product names.
    """

    skill: float
    style: Style

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's text."""
        is_good = cue.random.random() < self.skill
        goal = Goal.from_dict(cue.task.data["goal"])
        if cue.role == "buyer":
            return self._follow_message(cue) if is_good else _random_action(cue)
        if cue.role == "searcher":
            return _format_suggestion(*self._best_action(goal, cue)) if is_good else _weak_suggestion(goal, cue.random)
        verb, words = self._best_action(goal, cue)
        return _closest_option(f"{verb}[{words}]", cue) if is_good else _random_action(cue)

    def _best_action(self, goal: Goal, cue: PolicyInput) -> tuple[str, str]:
        """Return the best next action, from the pages seen so far."""
        page = cue.last_message
        earlier_pages = [str(message["content"]) for message in cue.messages if message["role"] == "user"][:-1]
        if _PART.search(page):
            return "click", PREVIOUS
        product = _PRODUCT.search(page)
        if product:
            return "click", self._product_action(goal, page, product[2], product[1], earlier_pages)
        if "\n[" not in page:
            return "search", " ".join((*goal.attributes, goal.noun))
        seen_numbers = {product_match[2] for text in earlier_pages for product_match in _PRODUCT.finditer(text)}
        if self.style == "plain":
            seen_numbers = set()  # products are clicked by row there
        for number, name, price in _ROW.findall(page):
            has_attributes = self.style == "full" or all(attribute in name for attribute in goal.attributes)
            if (
                number not in seen_numbers
                and goal.noun in name.replace(",", "").split()
                and float(price) <= goal.price_upper
                and has_attributes
            ):
                return "click", number
        return "click", NEXT if f"[{NEXT}]" in page else BACK

    def _product_action(self, goal: Goal, page: str, number: str, title: str, earlier_pages: Sequence[str]) -> str:
        seen_parts = {part[3]: part[4] for text in earlier_pages for part in _PART.finditer(text) if part[2] == number}
        known_text = " ".join((title, *seen_parts.values())).lower()
        missing = [attribute for attribute in goal.attributes if attribute not in known_text]
        if missing:
            unseen_parts = [part for part in (FEATURES, DESCRIPTION) if part not in seen_parts]
            return unseen_parts[0] if unseen_parts else PREVIOUS
        rows = _OPTIONS.findall(page)
        offered = {value for row, _ in rows for value in _BUTTON.findall(row)}
        chosen = {chosen_value for _, chosen_value in rows}
        wanted = [value for value in goal.options.values() if value not in chosen]
        if any(value not in offered for value in wanted):
            return PREVIOUS
        return wanted[0] if wanted else BUY

    def _follow_message(self, cue: PolicyInput) -> str:
        """Perform the action in the message; without a usable message, guess."""
        message = _MESSAGE.search(cue.last_message)
        suggestion = message[1] if message else ""
        for pattern, verb in _SUGGESTIONS:
            match = pattern.match(suggestion)
            if match:
                return _closest_option(f"{verb}[{match[1].lower()}]", cue)
        return _random_action(cue)


def _format_suggestion(verb: str, words: str) -> str:
    if verb == "search":
        return f"Find {words}."
    if words.isdecimal():
        return f"Take {words}."
    return f"Click {words}." if words in (BACK, BUY, DESCRIPTION, FEATURES, NEXT, PREVIOUS) else f"Choose {words}."


def _weak_suggestion(goal: Goal, random: Random) -> str:
    """Return a weak searcher's text: the kind of product, or nothing useful."""
    return random.choice((f"A {goal.noun}.", "Look around."))


def _random_action(cue: PolicyInput) -> str:
    """Return a random legal action, regardless of messages."""
    if cue.options:
        return cue.random.choice(cue.options)
    buttons = list(_find_buttons(cue.last_message))
    if not buttons:
        return f"search[{cue.random.choice(PLAIN_PRODUCT_KINDS).noun}]"
    return f"click[{cue.random.choice(buttons)}]"


def _find_buttons(page: str) -> Iterator[str]:
    for row in page.split("\n\n")[0].splitlines():
        yield from _BUTTON.findall(row)


def _closest_option(action: str, cue: PolicyInput) -> str:
    """Return the action, or the most similar option."""
    if not cue.options or action in cue.options:
        return action
    words = set(parse_action(action).words.split())
    return max(cue.options, key=lambda option: len(words & set(parse_action(option).words.split())))
