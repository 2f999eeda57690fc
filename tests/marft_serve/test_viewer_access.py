"""Who is answered by the viewer: whoever has the token, on a host that is ours, and who only reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("fastapi", reason="needs pip install 'marft[viewer]'")

from starlette.testclient import TestClient

from marft_serve.cli.commands import traces as commands
from marft_serve.viewer.app import Viewer
from tests.views import asked, client, make_run

SECRET = "s3cret"
BEARER = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one", steps=1)


@pytest.fixture
def mine(run: Path) -> TestClient:
    return client(run, token=SECRET, host="viewer.local")


def status(mine: TestClient, path: str = "/api/runs", **headers: str) -> int:
    return mine.get(path, headers=headers, follow_redirects=False).status_code


def test_without_the_token_the_page_is_there_and_no_run_is(mine: TestClient) -> None:
    assert status(mine, "/") == 200
    for path in ("/api/runs", "/api/catalogue", "/api/runs/one/episodes/1/0", "/api/nothing", "/api"):
        answer = mine.get(path)
        assert answer.status_code == 401
        assert "token" in answer.json()["error"]


def test_the_token_of_the_address_becomes_a_cookie_that_no_script_and_no_other_site_has(mine: TestClient) -> None:
    answer = mine.get(f"/?token={SECRET}&x=1", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert SECRET not in cookie
    assert asked(mine, "runs")["runs"][0]["id"] == "one"


def test_a_bearer_will_do_and_wrong_ones_will_not(mine: TestClient) -> None:
    assert status(mine, **BEARER) == 200
    for given in ("Bearer wrong", f"Basic {SECRET}", "Bearer "):
        assert status(mine, authorization=given) == 401
    assert "set-cookie" not in mine.get("/?token=wrong", follow_redirects=False).headers
    assert status(mine, cookie=f"{mine.app.cookie}={SECRET}") == 401  # type: ignore[attr-defined]


def test_no_address_leads_elsewhere(mine: TestClient) -> None:
    answer = mine.get(f"http://127.0.0.1//evil.example/?token={SECRET}", follow_redirects=False)
    assert answer.headers["location"] == "/evil.example/"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1234", "127.0.0.1.evil.example", "", "[::1"])
def test_another_hosts_name_is_not_answered_to(mine: TestClient, host: str) -> None:
    assert status(mine, "/", host=host) == 421
    assert status(mine, host=host, **BEARER) == 421


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:9", "LOCALHOST", "[::1]:7", "viewer.local"])
def test_ours_are(mine: TestClient, host: str) -> None:
    assert status(mine, host=host, **BEARER) == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_only_get_is_answered(mine: TestClient, method: str) -> None:
    for path in ("/", "/api/runs", "/static/index.html"):
        assert mine.request(method, path, headers=BEARER).status_code == 405


def test_every_answer_keeps_the_page_to_itself(mine: TestClient) -> None:
    for path in ("/", "/api/runs", "/static/index.html", "/static/none", "/any/where"):
        headers = mine.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "access-control-allow-origin" not in headers
    assert mine.get("/api/runs").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", [
    "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/%00",
    "/api/runs/..%2f..%2fetc/metrics", "/api/runs/%2e%2e/steps", "/api/runs/one/episodes/..%2fepisodes%2fstep_000001/0",
    "/api/runs/one/episodes/%2fetc%2fpasswd/0", "/api/runs/one/episodes/step_000001/0", "/api/runs/one/episodes/01/0",
])  # fmt: skip
def test_no_path_leads_out_of_a_run(mine: TestClient, path: str) -> None:
    answer = mine.get(path, headers=BEARER)
    if answer.status_code == 200:  # a client has taken .. out of the address: then it is the page's
        assert answer.text == mine.get("/").text
    else:
        assert answer.status_code in (400, 404, 422)


@pytest.mark.parametrize("query", [
    "sort=foo", "limit=-1", "limit=99999999", "offset=x", "success=maybe", "reward_min=much", f"q={'x' * 501}",
])  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_a_sentence(mine: TestClient, query: str) -> None:
    answer = mine.get(f"/api/runs/one/episodes?{query}", headers=BEARER)
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("episodes/1/0/tokens", "this address needs 'action' to be answered: it is left out"),
        ("episodes/1/first", "'index' of this address cannot be 'first': it has to be a whole number"),
        ("episodes?limit=5000", "'limit' of this address cannot be '5000': it may not be more than 1000"),
        ("episodes?reward_min=much", "'reward_min' of this address cannot be 'much': it has to be a number"),
        (f"episodes?q={'x' * 501}", f"'q' of this address cannot be '{'x' * 40}…': it may have at most 500 characters"),
    ],
)
def test_a_refusal_says_in_plain_words_what_is_wrong_with_the_address(mine: TestClient, path: str, said: str) -> None:
    answer = mine.get(f"/api/runs/one/{path}", headers=BEARER)
    assert (answer.status_code, answer.json()["error"]) == (400, said)


@pytest.mark.parametrize("path", ["episodes/9/0", "episodes/1/99", "episodes/1/-1", "episodes/1/0/tokens?action=x"])
def test_what_is_not_there_is_said_so(mine: TestClient, path: str) -> None:
    answer = mine.get(f"/api/runs/one/{path}", headers=BEARER)
    assert answer.status_code == 404
    assert answer.json()["error"]


def test_others_may_not_look_without_a_token(run: Path) -> None:
    with pytest.raises(ValueError, match="--no-token: others could read"):
        Viewer([run], "0.0.0.0", 0, with_token=False)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .*marft.*\[viewer\]"):
        commands.view()


@pytest.mark.slow
def test_the_command_prints_an_address_that_answers_and_ends_with_ctrl_c(run: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    command = [sys.executable, "-m", "marft", "view", str(run.parent)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            address, _, token = process.stdout.readline().strip().partition("/?token=")
            assert address.startswith("http://127.0.0.1:")
            request = Request(f"{address}/api/runs/one/episodes?step=1", headers={"authorization": f"Bearer {token}"})
            with urlopen(request) as answer:
                assert json.loads(answer.read())["episodes"]
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()
    assert sorted(run.rglob("*")) == before
