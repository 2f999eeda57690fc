"""Whose turn it was: names in traces become roles of a recipe."""

from __future__ import annotations

import pytest

from marft_serve.traces.roles import RoleMapping, parse_roles


class TestRoles:
    def test_names_become_roles_as_given_then_alike(self) -> None:
        roles = RoleMapping(["planner", "code_writer"], {"node 7": "planner", "nobody": "planner"})
        assert roles.find_role(["node 7"]) == "planner"
        assert roles.find_role(["Code Writer"]) == "code_writer"
        assert roles.find_role(["inner", "planner"]) == "planner"
        assert roles.find_role(["tester"]) == ""
        assert roles.unused_names() == ["nobody"]
        assert "did you mean 'planner'?" in roles.format_unknown(["planer"])

    def test_the_only_agent_is_whoever_has_no_name(self) -> None:
        assert RoleMapping(["solver"], {}).find_role(["assistant"]) == "solver"
        assert RoleMapping(["solver"], {}).find_role(["boss"]) == ""
        assert RoleMapping(["solver", "judge"], {}).find_role(["assistant"]) == ""

    @pytest.mark.parametrize(
        ("word", "match"),
        [("x=planer", "did you mean 'planner'"), ("planner", "not written"), ("=planner", "not written")],
    )
    def test_a_role_that_is_not_there_is_refused(self, word: str, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            parse_roles([word], ["planner"])

    def test_names_may_hold_equals_signs(self) -> None:
        assert parse_roles(["a=b=planner"], ["planner"]) == {"a=b": "planner"}
