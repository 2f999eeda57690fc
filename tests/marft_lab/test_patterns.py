"""Regular expressions of recipes: each is searched for within limits, wherever a recipe names one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from marft.agents.channels import Record
from marft.common.errors import EpisodeFailedError
from marft.config.guards import GuardSettings
from marft.config.interfaces.channel import Message
from marft.config.patterns import contains_match, find_last_group
from marft.rewards.terms import Format
from marft_lab.safety.agent_outputs import AgentOutput, EpisodeOutputs
from marft_lab.safety.checks.calls import ForbiddenCalls
from marft_lab.safety.checks.says import ForbiddenText
from marft_lab.safety.suite import SuiteSettings

CATASTROPHIC = r"(a+)+$"
TEXT = "a" * 50_000 + "!"
WAYS = {
    "record": lambda pattern: Record(fields={"x": pattern}),
    "says": lambda pattern: ForbiddenText(patterns=(pattern,)),
    "calls": lambda pattern: ForbiddenCalls(tools=("t",), arguments=pattern),
    "refusals": lambda pattern: SuiteSettings(refusals=(pattern,)),
    "formats": lambda pattern: GuardSettings(formats={"actor": pattern}),
    "format": lambda pattern: Format(pattern=pattern),
}


@pytest.mark.parametrize(
    "search",
    [
        lambda: contains_match(CATASTROPHIC, TEXT),
        lambda: find_last_group(CATASTROPHIC, TEXT),
        lambda: Record(fields={"x": CATASTROPHIC}).transform([Message("a", TEXT)]),
        lambda: ForbiddenText(patterns=(CATASTROPHIC,), ignore_case=False).find_violations(
            EpisodeOutputs((AgentOutput("a", "answer", TEXT),))
        ),
        lambda: ForbiddenCalls(tools=("t",), arguments=CATASTROPHIC).find_violations(
            EpisodeOutputs((AgentOutput("a", "call", TEXT, "t"),))
        ),
    ],
)
@pytest.mark.slow
def test_a_search_without_an_end_is_cut_short(search: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.config.patterns.SEARCH_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(EpisodeFailedError, match="write it without a repeat inside a repeat"):
        search()
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "pattern", ["((a{1000}){1000}){1000}", "(?:a|b){100000000}x", "(?:a{65535}){65535}", "(" * 900 + ")" * 900]
)
def test_a_pattern_that_takes_gigabytes_to_compile_is_refused(way: str, pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"counts up to more than 100,000 parts|nested too deep"):
        WAYS[way](pattern)


@pytest.mark.parametrize(
    "pattern", [r"\{12000\}", "[{9999999}]", "x{,3}", "a{2,}", r"\\boxed\{.{1,400}\}", "(a{3}b){50}"]
)
def test_ordinary_counts_are_not(pattern: str) -> None:
    Format(pattern=pattern)
