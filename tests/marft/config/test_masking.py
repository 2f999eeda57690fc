"""Secrets that an endpoint echoes, in whatever form, are masked before anything is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import tomli_w

from marft.agents.tools.mcp import MCP, find_secrets, result_text
from marft.config import load_recipe
from marft.config.secrets import mask_recipe, mask_values, read_api_key, secret_values
from marft.evaluation.report import write_report
from marft.runs.episode_files import read_rows
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.endpoint import KEY, Reply, error, says, serving
from tests.marft.rewards.test_judge import compose, episode, judging
from tests.remotely import asking, play_many, remote_game, team

OPTIONS = {
    "user_token": "tok/en+with=odd&signs",
    "extra_headers": {"X-Api-Key": "header-secret-1", "Authorization": "Bearer bearer-secret-2"},
    "list_of": [{"client_secret": "nested-secret-3"}],
    "top_p": 0.5,
    "metadata": {"topic": "ordinary words"},
}
NAMED = {  # the same, as a recipe holds them
    "user_token": "$USER_TOKEN",
    "extra_headers": {"X-Api-Key": "$HEADER_KEY", "Authorization": "Bearer $BEARER_KEY"},
    "list_of": [{"client_secret": "$NESTED_KEY"}],
    "top_p": 0.5,
    "metadata": {"topic": "ordinary words"},
}
SECRETS = [KEY, "tok/en+with=odd&signs", "header-secret-1", "bearer-secret-2", "nested-secret-3"]
ECHO = " ".join([*SECRETS, quote("tok/en+with=odd&signs", safe=""), "ordinary words"])


def holds_a_secret(stored: str) -> list[str]:
    return [secret for secret in [*SECRETS, quote(SECRETS[1], safe="")] if secret in stored]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    monkeypatch.setenv("JUDGE_KEY", KEY)


@pytest.mark.parametrize(
    "reply",
    [
        says(ECHO), error(400, ECHO), error(500, ECHO), Reply(ECHO.encode()),
        Reply(json.dumps({ECHO: ECHO, "choices": [{"message": {"content": [ECHO]}}]}).encode()),
        says(None, calls=[{"name": "a" + ECHO.replace(" ", "_")[:150], "arguments": json.dumps({"x": ECHO})}]),
    ],
)  # fmt: skip
def test_no_episode_holds_what_was_echoed(reply: Reply) -> None:
    with (
        serving(lambda body, n: reply) as server,
        asking(server, api_key_variable="TEACHER_KEY", extra_body=OPTIONS) as endpoint,
    ):
        (played,) = play_many(remote_game(endpoint), 1)
    said = [played.error, *(a.text for a in played.actions), *(str(a.calls) for a in played.actions)]
    assert holds_a_secret(" ".join(said)) == []
    if played.actions:
        assert "*** *** *** *** *** *** ordinary words" in said[1]


@pytest.mark.slow
def test_no_file_of_a_run_holds_what_was_echoed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe names environment variables; resuming reads them again."""
    names = ["USER_TOKEN", "HEADER_KEY", "BEARER_KEY", "NESTED_KEY"]
    for name, secret in zip(names, SECRETS[1:], strict=True):
        monkeypatch.setenv(name, secret)
    with serving(lambda body, n: says(ECHO)) as server:
        run = team(server, tmp_path, api_key_variable="TEACHER_KEY", extra_body=NAMED)
        folder = RunFolder.create(run)
        train(run, folder)
    rows = read_rows(folder.episodes / "step_000001.parquet")
    assert any("*** ***" in (row["text"] or "") for row in rows)
    write_report(folder)
    for file in folder.path.rglob("*"):
        if file.is_file():
            assert holds_a_secret(file.read_bytes().decode("latin-1")) == [], file
    assert load_recipe(folder.config_path).models["teacher"].endpoint == run.models["teacher"].endpoint


def test_no_judges_cache_holds_what_was_echoed(tmp_path: Path) -> None:
    with serving(lambda body, n: says(f"{ECHO}\n7")) as server:
        asked = judging(server, tmp_path, {"api_key_variable": "JUDGE_KEY", "extra_body": OPTIONS})
        with asked as judge:
            assert compose(judge, episode())[0].transitions[0].reward == pytest.approx(0.7)
    kept = [file.read_text() for file in tmp_path.rglob("*.json")]
    assert kept
    assert holds_a_secret(" ".join(kept)) == []
    assert "***" in kept[0]


def test_a_secret_that_begins_like_another_one_is_masked_whole() -> None:
    assert mask_values(["abcdefgh", "abcdefgh-more"], "abcdefgh-more, abcdefgh") == "***, ***"


def test_a_secret_is_masked_as_json_and_a_url_would_write_it() -> None:
    secret = 'quoted "secret" \\ 1'
    assert mask_values([secret], json.dumps({"a": secret})) == '{"a": "***"}'
    assert mask_values([secret], f"http://a/?k={quote(secret, safe='')}&b=1") == "http://a/?k=***&b=1"


def test_all_below_a_name_that_sounds_like_a_secret_is_one() -> None:
    fields = {"auth": {"value": "abcdefgh1", "more": [{"text": "abcdefgh2"}]}, "user": {"value": "abcdefgh3"}}
    assert list(secret_values(fields)) == ["abcdefgh1", "abcdefgh2"]


def test_secrets_of_every_entry_of_a_list_are_masked_in_a_recipe() -> None:
    table = {"rewards": [{"endpoint": {"extra_body": {"api_key": f"abcdefgh{n}"}}} for n in range(2)]}
    assert mask_recipe(tomli_w.dumps(table)).count("***") == 2


def test_a_key_is_read_without_what_surrounds_it_and_refused_where_no_header_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THE_KEY", " sk-abcdefgh\n")
    assert read_api_key("THE_KEY") == "sk-abcdefgh"
    for wrong in ("sk-äöü", "sk-a\nX-Other: 1", "  "):
        monkeypatch.setenv("THE_KEY", wrong)
        with pytest.raises(ValueError, match="environment variable THE_KEY") as caught:
            read_api_key("THE_KEY")
        assert wrong.strip() not in str(caught.value) or not wrong.strip()


def test_words_are_no_secrets() -> None:
    """``api_key = "EMPTY"`` is what local servers are given: answers keep their words."""
    assert mask_values(["EMPTY", "none"], "an EMPTY box, none") == "an EMPTY box, none"
    assert list(secret_values({"max_tokens": 5, "stop_token": "</s>", "user": "somebody-long", "key": "short"})) == []


def test_a_recipe_is_shown_without_secrets() -> None:
    table: dict[str, Any] = {"models": {"m": {"path": "p", "endpoint": {"url": "http://a/v1", "extra_body": OPTIONS}}}}
    shown = mask_recipe(tomli_w.dumps(table))
    assert holds_a_secret(shown) == []
    assert "ordinary words" in shown
    assert 'url = "http://a/v1"' in shown


@pytest.mark.parametrize("failed", [False, True])
def test_no_answer_of_a_tool_server_holds_what_was_echoed(failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mcp_types = pytest.importorskip("mcp_types")
    monkeypatch.setenv("SERVER_TOKEN", "server-token-4")
    monkeypatch.setenv("HOME_TOWN", "ordinary-town")
    settings = MCP(command=("x",), env_variables=("SERVER_TOKEN", "HOME_TOWN"))
    text = mcp_types.TextContent(type="text", text=f"server-token-4 {KEY} ordinary-town")
    result = mcp_types.CallToolResult(content=[text], is_error=failed)
    secrets = [*find_secrets(settings), KEY]
    if failed:
        with pytest.raises(RuntimeError, match=r"^\*\*\* \*\*\* ordinary-town$"):
            result_text(result, secrets)
    else:
        assert result_text(result, secrets) == "*** *** ordinary-town"
