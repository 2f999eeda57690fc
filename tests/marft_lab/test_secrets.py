"""Secrets in recipes: refused with a remedy, read from the environment, and in no file, message or log."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marft.config import parse_recipe
from marft.config.endpoint import EndpointSettings
from marft.config.interfaces.environment import Environment
from marft.config.secrets import check_no_secrets, fill_variables, find_secret_keys, redact
from marft.inference.endpoints.client import Endpoint
from marft.runs.loggers.mlflow import MLflow
from marft.runs.run_folder import RunFolder
from marft_lab.federated.settings import parse_federation
from tests.endpoint import says, serving
from tests.helpers import recipe, settings

CANARY = "canary-7f3a9c"  # has no shape of a key: its place gives it away


def with_options(**options: Any) -> dict[str, Any]:
    models = {
        "base": {"path": "tiny"},
        "far": {"path": "m", "endpoint": {"url": "http://127.0.0.1:1/v1", "extra_body": options}},
    }
    policies = {"reasoner": {"model": "far", "train": "frozen"}, "actor": {"model": "base"}}
    return recipe(models=models, policies=policies)


def with_tool(**tool: Any) -> dict[str, Any]:
    return recipe(tools={"x": {"name": "mcp", **tool}})


PLANTED = {
    "options": with_options(api_key=CANARY),
    "another spelling": with_options(**{"X-API-Key": CANARY}),
    "camel case": with_options(accessToken=CANARY),
    "in a table": with_options(extra={"headers": {"Authorization": f"Bearer {CANARY}"}}),
    "in a list": with_options(extra=[{"password": CANARY}]),
    "a list of them": with_options(api_keys=["EMPTY", CANARY]),
    "a short one": with_options(token="canary"),
    "a query": with_options(base=f"https://host/v1?sig={CANARY}&x=1"),
    "a cookie": with_options(headers={"Cookie": f"session={CANARY}"}),
    "an endpoint's own key": recipe(
        models={"base": {"path": "m", "endpoint": {"url": "http://h/v1", "api_key": CANARY}}}
    ),
    "the place of a variable": recipe(
        models={"base": {"path": "m", "endpoint": {"url": "http://h/v1", "api_key_variable": CANARY}}}
    ),
    "a url": recipe(models={"base": {"path": "m", "endpoint": {"url": f"http://me:{CANARY}@h/v1"}}}),
    "a url that is none": recipe(models={"base": {"path": "m", "endpoint": {"url": f"http://me:{CANARY}/@ [h"}}}),
    "a url's token": with_tool(url=f"https://h/mcp?token={CANARY}"),
    "a url's user": with_tool(url=f"https://{CANARY}@h/mcp"),
    "a tool's environment": with_tool(command=["server"], env_variables=[f"API_KEY={CANARY}"]),
    "a tool's environment, named as nothing": with_tool(command=["server"], env_variables=[f"THING={CANARY}"]),
    "a tool's environment as a table": with_tool(command=["server"], env_variables={"THING": CANARY, "TOKEN": CANARY}),
    "a tool's env": with_tool(command=["server"], env={"API_KEY": CANARY}),
    "a tool's headers": with_tool(url="http://h/mcp", header_variables={"Authorization": f"Bearer {CANARY}"}),
    "a tool's other headers": with_tool(url="http://h/mcp", header_variables={"X-Thing": CANARY}),
    "a tool's arguments": with_tool(command=["server", "--api-key", CANARY]),
    "a tool's argument": with_tool(command=["server", f"--token={CANARY}"]),
    "a header in a command": with_tool(command=["curl", "-H", f"Authorization: {CANARY}"]),
    "a sink": recipe(sinks=[{"name": "mlflow", "tracking_uri": f"postgresql://me:{CANARY}@host/db"}]),
    "a sink's tags": recipe(sinks=[{"name": "mlflow", "tags": {"db_password": CANARY}}]),
    "tracing": recipe(tracing={"otlp": f"http://me:{CANARY}@localhost:4318"}),
    "tracing's headers": recipe(tracing={"headers": {"authorization": CANARY}}),
    "the engine's options": recipe(engine={"kind": "vllm", "engine_args": {"hf_token": CANARY}}),
    "a judge": recipe(
        rewards=[{"name": "judge", "endpoint": {"url": "http://h/v1", "extra_body": {"secret": CANARY}}}]
    ),
    "a world's arguments": recipe(environment={"name": "verifiers", "id": "x", "args": {"judge_api_key": CANARY}}),
    "a part of one's own": recipe(environment={"name": "tests.marft_lab.test_secrets:Keyed", "password": CANARY}),
}
SHAPED = (
    "sk-proj-abcdefghijklmnop", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "hf_abcdefghijklmnopqrstuvwxyz",
    "Bearer abcdefgh12345678", "AKIAABCDEFGHIJKLMNOP", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE", "github_pat_0123456789abcdefghij_x", "xoxb-0123456789-abc",
)  # fmt: skip


class Keyed(Environment):
    password: str = ""


@pytest.mark.parametrize("place", PLANTED)
def test_a_recipe_with_a_secret_is_refused_with_a_remedy_and_the_secret_is_not_repeated(place: str) -> None:
    with pytest.raises(ValueError, match=r"variable|OTEL_EXPORTER|MLFLOW_TRACKING") as caught:
        parse_recipe(PLANTED[place])
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("text", SHAPED)
@pytest.mark.parametrize("place", ["instructions", "options", "tag"])
def test_what_has_the_shape_of_a_key_is_refused_under_any_name(text: str, place: str) -> None:
    table = with_options(note=f"it is {text}")
    if place == "instructions":
        table = recipe()
        table["agents"][0]["instructions"] = f"Say {text} to the server."
    if place == "tag":
        table = recipe(sinks=[{"name": "mlflow", "tags": {"note": text}}])
    with pytest.raises(ValueError, match="looks like a secret") as caught:
        parse_recipe(table)
    assert text not in str(caught.value)


def test_an_override_is_held_to_the_same() -> None:
    with pytest.raises(ValueError, match=r'endpoint\.extra_body\.api_key: holds what looks like a secret.*"\$MY_KEY"'):
        parse_recipe(with_options(), ("--models.far.endpoint.extra_body.api_key", CANARY))
    with pytest.raises(ValueError, match="is no TOML") as caught:
        parse_recipe(with_options(), ("--models.far.endpoint.extra_body", f"{{ api_key = '{CANARY}"))
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 5, "logit_bias": {"50256": -100}, "pad_token": "<|endoftext|>", "tokenizer": "some/long-name"},
        {"token_budget": "very large", "stop_token": "END-OF-ALL", "prompt_cache_key": "my-team", "author": "somebody"},
        {
            "api_key": "EMPTY",
            "token": "$MY_TOKEN",
            "headers": {"Authorization": "Bearer $MY_KEY"},
            "keyboard": "dvorak",
        },
        {"judge_api_key_var": "OPENAI_API_KEY", "auth": {"type": "bearer"}, "password": "${MY_PASSWORD}"},
        {
            "repo": "ssh://git@github.com/x",
            "data": "https://host/rows.csv?page=2",
            "monkey": "a-long-word-of-no-secret",
        },
        {"text": "Never tell the password, the API key or a token: a task-oriented disk-resident risk-averse agent."},
    ],
)
def test_what_only_sounds_like_a_secret_passes(options: dict[str, Any]) -> None:
    assert not list(find_secret_keys({"options": options}))


@pytest.mark.parametrize(
    "options",
    [
        {"api_key_2": CANARY}, {"key1": CANARY}, {"token_v2": CANARY}, {"api_key_value": CANARY}, {"jwt": CANARY},
        {"private_key_pem": CANARY}, {"password": 12345678}, {"tokens": [CANARY]}, {"hf_tokens": {"a": CANARY}},
        {"headers": [["Authorization", CANARY]]}, {"extra_headers": [{"name": "X-Api-Key", "value": CANARY}]},
        {"header": f"X-Api-Key: {CANARY}"}, {"dsn": f"Password={CANARY};Server=h"},
        {"dsn": f"host=h user=me password={CANARY}"}, {"extra": json.dumps({"a": {"api_key": CANARY}})},
        {"command": f"server --api-key {CANARY}"}, {"command": ["s", f"--header=X-Api-Key: {CANARY}"]},
        {"webhook": "https://hooks.slack.com/services/T000/B000/abcdefgh"}, {"x": "nvapi-0123456789abcdefghij"},
        {"url": f"me:{CANARY}@host/v1"}, {"base_url": f"me:{CANARY}@host:8000"}, {"host": f"me:{CANARY}@10.0.0.5"},
        {"proxies": [f"me:{CANARY}@proxy"]}, {"https_proxy": f"me:{CANARY}@proxy:3128/"},
        {"command": ["curl", "-u", f"me:{CANARY}", "http://h"]}, {"command": ["curl", f"-ume:{CANARY}", "http://h"]},
        {"command": ["curl", "--user", f"me:{CANARY}"]}, {"command": ["curl", f"--user=me:{CANARY}"]},
        {"command": f"curl -u me:{CANARY} http://h"}, {"command": ["curl", "--proxy-user", f"me:{CANARY}"]},
        {"args": ["--index", f"me:{CANARY}@host/simple"]}, {"command": ["pip", f"me:{CANARY}@host/simple"]},
        {"x": "GOCSPX-0123456789abcdefghij"}, {"x": "sk-abcdefghij0123456789"}, {"x": "sk-svcacct-ab_cd-ef_gh-ij_kl"},
    ],
)  # fmt: skip
def test_a_secret_is_found_in_whatever_form_it_is_given(options: dict[str, Any]) -> None:
    assert list(find_secret_keys({"options": options}))


@pytest.mark.parametrize(
    "table",
    [
        {"policies": {"secret": {"model": "base"}, "token": {"model": "base"}}, "models": {"bearer": {"path": "tiny"}}},
        {"tools": {"generate_password": {"name": "function", "call": "my_tools:generate"}}},
        {"environment": {"name": "my:Env", "prompt_key": "prompt", "key": "question", "signature": "def f(x: int)"}},
        {"environment": {"args": {"text_key": "text"}, "kwargs": {"obs_key": "pixels", "keys": ["w", "a", "s"]}}},
        {"environment": {"path": "data/sk-learn-classifiers-small.csv", "columns": "pk_customer_identifier"}},
        {"rewards": [{"name": "my:R", "token": "DONE", "answer_token": "<answer>", "pass": "second"}]},
        {"options": {"response_format": {"schema": {"properties": {"password": {"type": "string"}}}}}},
        {"evaluation": {"gates": [{"name": "leaks", "secrets": ["blue-4711"]}]}},
        {"options": {"auth": "api_key", "guided_json": {"key": "value"}}},
        {"tools": {"x": {"command": ["server", "--key", "id", "--token-limit", "5"]}}},
        {"tools": {"x": {"command": ["docker", "run", "-u", "1000:1000", "--user", "me", "image:latest"]}}},
        {"tools": {"x": {"command": ["curl", "-u", "me:$MY_PASSWORD", "http://h", "python", "-u", "-umodule"]}}},
        {
            "tools": {
                "x": {"command": ["scp", "git@host:path", "me@example.org", "a:b", "npx", "pkg@1.2", "@scope/p@2"]}
            }
        },
        {"agents": [{"instructions": "a:b@c"}, {"instructions": "Write to me:you@example.org."}]},
        {"options": {"url": "localhost:8000/v1", "host": "me@host", "address": "me@example.org", "note": "a:b@c"}},
    ],
)
def test_names_that_users_choose_and_words_as_values_are_no_secrets(table: dict[str, Any]) -> None:
    assert not list(find_secret_keys(table))


def test_a_federation_is_held_to_the_same(tmp_path: Path) -> None:
    table = {
        "name": "f",
        "recipe": "x.toml",
        "sites": {"a": {"overrides": {"models.far.endpoint.extra_body.key": CANARY}}},
    }
    with pytest.raises(ValueError, match="looks like a secret") as caught:
        parse_federation(table, "f.toml", tmp_path)
    assert CANARY not in str(caught.value)


def test_a_part_that_is_made_in_python_does_not_repeat_a_password() -> None:
    with pytest.raises(ValueError, match="must hold no password") as caught:
        MLflow(tracking_uri=f"http://me:{CANARY}@host")
    assert CANARY not in str(caught.value)


def test_many_secrets_are_counted() -> None:
    with pytest.raises(ValueError, match="and 990 more"):
        check_no_secrets({"a": [{"token": CANARY}] * 1000}, "x")


def test_options_name_variables_which_are_read_when_a_server_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", f"{CANARY}\n")
    run = parse_recipe(with_options(api_key="$MY_KEY", headers={"Authorization": "Bearer $MY_KEY"}, seed=1))
    assert run.models["far"].endpoint is not None
    endpoint = Endpoint("far", run.models["far"].endpoint, "m")
    try:
        body = endpoint.build_body([], {})
    finally:
        endpoint.close()
    assert (body["api_key"], body["headers"], body["seed"]) == (CANARY, {"Authorization": f"Bearer {CANARY}"}, 1)
    folder = RunFolder(tmp_path / "run")
    folder.write_config(run)
    assert CANARY not in folder.config_path.read_text()
    assert "$MY_KEY" in folder.config_path.read_text()


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(ValueError, match="endpoint 'far': extra_body: the environment variable NOT_THERE is not set"):
        Endpoint("far", EndpointSettings(url="http://h/v1", extra_body={"user_key": "$NOT_THERE"}), "m")
    with pytest.raises(ValueError, match="NOT_THERE"):
        fill_variables([{"a": "$NOT_THERE"}])


def test_files_that_could_hold_a_secret_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = RunFolder.create(settings("tiny", tmp_path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.config_path.stat().st_mode) == 0o600


def test_urls_and_keys_are_censored_in_any_text() -> None:
    text = f"cannot reach https://me:{CANARY}@host/x?api_key={CANARY}: Bearer abcdefgh12345678"
    assert redact(text) == "cannot reach https://***@host/x?api_key=*** ***"


@pytest.mark.slow
def test_no_file_and_no_output_of_a_run_holds_what_its_variables_hold(tmp_path: Path) -> None:
    """A server that echoes all it is sent, a part that raises, and a training that is run to its end."""
    with serving(lambda body, number: says(json.dumps(body))) as server:
        endpoint = {"url": server.url, "api_key_variable": "THE_KEY", "extra_body": {"user_secret": "$THE_OTHER"}}
        table = recipe("tiny", tmp_path / "runs", training={"steps": 1})
        table["models"]["far"] = {"path": "gpt", "endpoint": endpoint | {"local_model": "base"}}
        table["policies"]["reasoner"] = {"model": "far", "train": "frozen"}
        (tmp_path / "mine.json").write_text(json.dumps(table))
        code = "import json, marft, sys; marft.train(json.load(open(sys.argv[1])))"
        known = {"THE_KEY": f"{CANARY}-of-header", "THE_OTHER": f"{CANARY}-of-options"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "mine.json")], cwd=tmp_path, env={**os.environ, **known},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert any(CANARY in str(asked) for asked in server.requests)
    assert any(CANARY in str(asked) for asked in server.headers)
    assert CANARY not in done.stdout + done.stderr
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"config.toml", "recipe.toml", "metrics.jsonl"}
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    held = [path for path in files if path.name in ("config.toml", "recipe.toml")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in held} == {0o600}
