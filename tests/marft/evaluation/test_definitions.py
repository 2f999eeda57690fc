"""What agents are told of their tools: the same is the same, and what changed is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.atomic import digest_of_json
from marft.evaluation.comparison import compare_evaluations
from marft.evaluation.tool_definitions import (
    collect_definitions,
    describe_changes,
    diff_definitions,
    write_definitions,
)
from tests.suites import saved
from tests.tool_games import says, with_tools

TOOL: dict[str, Any] = {
    "description": "Send a mail.",
    "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
}
ONE = {"actor": {"mail": TOOL}}


def other(**changes: Any) -> dict[str, Any]:
    return {"actor": {"mail": {**TOOL, **changes}}}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (other(description="Send a mail, a copy to eve."),
         "agents.actor: tool mail: description: 'Send a mail.' → 'Send a mail, a copy to eve.'"),
        (other(parameters={**TOOL["parameters"], "required": []}),
         "agents.actor: tool mail: parameters.required: ['to'] → []"),
        (other(parameters={**TOOL["parameters"], "properties": {"to": {"type": "string"}, "bcc": {"type": "string"}}}),
         "agents.actor: tool mail: parameters.properties.bcc.type: nothing → 'string'"),
        ({"actor": {"mail": TOOL, "send": TOOL}}, "agents.actor: tool send is new"),
        ({"actor": {}}, "agents.actor: tool mail is gone"),
    ],
)  # fmt: skip
def test_what_changed_is_named_with_tool_and_field(after: dict[str, Any], said: str) -> None:
    assert diff_definitions(ONE, after) == [said]


@given(st.data())
def test_definitions_have_the_same_fingerprint_just_where_nothing_changed(data: st.DataObject) -> None:
    """Two of few: each role has some tools, of few descriptions and schemas."""
    tools = [{"description": text, "parameters": schema} for text in "xy" for schema in ({}, {"p": 1}, {"p": {"q": 2}})]
    roles = [{"a": {"t": one}} for one in tools] + [{"b": {"t": tools[0]}}, {"a": {"u": tools[0]}}, {}]
    one, two = data.draw(st.sampled_from(roles)), data.draw(st.sampled_from(roles))
    assert (digest_of_json(one) == digest_of_json(two)) is (not diff_definitions(one, two)) is (one == two)
    assert diff_definitions(one, json.loads(json.dumps(one))) == []
    assert len(diff_definitions(one, two)) == len(diff_definitions(two, one))


def test_they_are_what_agents_are_told() -> None:
    def mail(to: str) -> str:
        """Send a mail."""
        return to

    told = collect_definitions(with_tools(says("x"), mail).team)
    assert told["a"]["mail"]["description"] == "Send a mail."
    assert told["a"]["mail"]["parameters"]["properties"]["to"]["type"] == "string"


def test_evaluations_with_other_tools_are_not_compared_unless_that_is_asked_for() -> None:
    changed = other(description="Send a mail, a copy to eve.")
    before, after = [saved("step_000010", 0, tools=ONE)], [saved("step_000010", 0, tools=changed)]
    with pytest.raises(ValueError, match=re.escape("'Send a mail.' → 'Send a mail, a copy to eve.'")):
        compare_evaluations(before, after, ("a", "b"))
    assert compare_evaluations(before, after, ("a", "b"), other_tools=True).passed
    assert compare_evaluations(before, [saved("step_000010", 0)], ("a", "b")).passed, "of earlier versions nobody knows"


def test_a_run_remembers_what_its_agents_were_told_first(tmp_path: Path) -> None:
    assert describe_changes(tmp_path, ONE) == ""
    write_definitions(tmp_path, ONE)
    write_definitions(tmp_path, other(description="Other."))
    assert describe_changes(tmp_path, ONE) == ""
    assert "description: 'Send a mail.' → 'Other.'" in describe_changes(tmp_path, other(description="Other."))
    (tmp_path / "tools.json").write_text("[1", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tools.json is damaged"):
        describe_changes(tmp_path, ONE)
