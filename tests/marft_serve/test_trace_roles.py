"""Whose turn it was: names in traces become roles of a recipe."""

from __future__ import annotations

import pytest

from marft_serve.traces.roles import Roles, given_roles


class TestRoles:
    def test_names_become_roles_as_given_then_alike(self) -> None:
        roles = Roles(["planner", "code_writer"], {"node 7": "planner", "nobody": "planner"})
        assert roles.of(["node 7"]) == "planner"
        assert roles.of(["Code Writer"]) == "code_writer"
        assert roles.of(["inner", "planner"]) == "planner"
        assert roles.of(["tester"]) == ""
        assert roles.unused() == ["nobody"]
        assert "did you mean 'planner'?" in roles.unknown(["planer"])

    def test_the_only_agent_is_whoever_has_no_name(self) -> None:
        assert Roles(["solver"], {}).of(["assistant"]) == "solver"
        assert Roles(["solver"], {}).of(["boss"]) == ""
        assert Roles(["solver", "judge"], {}).of(["assistant"]) == ""

    @pytest.mark.parametrize(
        ("word", "match"),
        [("x=planer", "did you mean 'planner'"), ("planner", "not written"), ("=planner", "not written")],
    )
    def test_a_role_that_is_not_there_is_refused(self, word: str, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            given_roles([word], ["planner"])

    def test_names_may_hold_equals_signs(self) -> None:
        assert given_roles(["a=b=planner"], ["planner"]) == {"a=b": "planner"}
