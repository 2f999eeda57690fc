"""The viewer among files that are not what it wrote, and requests that come at once."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs pip install 'marft[viewer]'")

from marft.common.types import ActionCredit
from marft.runs.credit_files import write_credit
from marft_serve.viewer import episode_query
from marft_serve.viewer.episode_index import SCAN_SECONDS, EpisodeFile, FileIndex, FileVersion, IndexCache, build_index
from marft_serve.viewer.episode_query import SEARCH_CACHE_SIZE, EpisodeQuery, EpisodeTable
from tests.nights import BY_NIGHT
from tests.views import asked, attempt, client, make_run, record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "one", steps=1)


def test_an_index_on_disk_with_any_byte_changed_is_made_anew(run: Path, tmp_path: Path) -> None:
    path, cache = run / "episodes" / "step_000001.parquet", IndexCache(tmp_path / "cache")
    stamp = FileVersion.from_stat(path.stat())
    first = cache.load_index(path, stamp)
    kept = next((tmp_path / "cache").glob("*/step_000001.arrow"))
    whole, draw = kept.read_bytes(), np.random.default_rng(0)
    for place in [0, 31, 32, len(whole) - 1, *draw.integers(len(whole), size=20).tolist()]:
        kept.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert cache.load_index(path, stamp).equals(first)
        assert kept.read_bytes() == whole
    assert first.equals(build_index(path))


def test_a_folder_of_the_cache_that_says_nothing_readable_stays(tmp_path: Path) -> None:
    (tmp_path / "cache" / "x").mkdir(parents=True)
    (tmp_path / "cache" / "x" / "of").write_bytes(b"\xff\xfe")
    IndexCache(tmp_path / "cache").prune()
    assert (tmp_path / "cache" / "x" / "of").exists()


def test_a_recipe_with_other_tables_than_expected_hides_no_run(run: Path) -> None:
    other, config = make_run(run.parent / "two"), run / "config.toml"
    config.write_text("policies = [1]\nteam = 3\n" + '[algorithm]\nname = "a"\nlevel = "b"\n[training]\nsteps = 1\n'
                      '[[agents]]\nrole = "r"\npolicy = 3\n')  # fmt: skip
    mine = client(run.parent)
    assert [one["id"] for one in asked(mine, "runs")["runs"]] == ["one", other.name]
    assert asked(mine, "runs/one/team", step=1)["agents"][0]["policy"] == "3"


def test_a_folder_that_cannot_be_looked_into_hides_no_run(run: Path) -> None:
    (run.parent / "a").symlink_to("x" * 300)
    assert [one["id"] for one in asked(client(run.parent), "runs")["runs"]] == ["one"]


@pytest.mark.parametrize("file", ["metrics.jsonl", "run.lock"])
def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(run: Path, file: str) -> None:
    (run / file).unlink(missing_ok=True)
    os.mkfifo(run / file)
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(lambda: asked(client(run.parent), "runs"))
        try:
            (one,) = asking.result(30)["runs"]
        finally:
            os.close(os.open(run / file, os.O_RDWR | os.O_NONBLOCK))  # lets go of whoever waits
    assert one["state"] != "training"


def test_a_run_whose_name_is_no_text_is_found_by_the_name_that_it_is_given(run: Path) -> None:
    names = [os.fsdecode(b"\xff"), os.fsdecode(b"\xfe")]
    for name in names:
        shutil.copytree(run, run.parent / name)
    mine = client(run.parent)
    found = [one["id"] for one in asked(mine, "runs")["runs"]]
    assert len(set(found)) == 3
    assert all(asked(mine, f"runs/{quote(name)}/steps")["steps"] for name in found)


def test_a_run_whose_name_is_no_text_shows_its_episodes_credit_and_team(run: Path, tmp_path: Path) -> None:
    episodes = [attempt(2, number) for number in range(2)]
    record(run, 2, episodes)
    half = [
        ActionCredit(e, a, "g", np.ones(1), np.array([0.5]), None, None, None, 1.0) for e in episodes for a in e.actions
    ]
    write_credit(run / "credit" / "step_000002.parquet", half)
    run = run.rename(run.parent / os.fsdecode(b"caf\xe9"))
    mine = client(run.parent, cache=tmp_path / "cache")
    (name,) = (quote(one["id"]) for one in asked(mine, "runs")["runs"])
    assert asked(mine, f"runs/{name}/episodes")["total"] == 6
    step = asked(mine, f"runs/{name}/steps")["steps"][1]
    assert (step["episodes"], step["actions"], step["credit"], step["problem"]) == (2, 4, True, "")
    whole = asked(mine, f"runs/{name}/episodes/2/1")
    assert whole["actions"][0]["text"].startswith("Plan 2.1")
    assert whole["actions"][0]["advantage"] == 0.5
    assert asked(mine, f"runs/{name}/team", step=2)["edges"][0]["count"] == 2
    assert asked(mine, f"runs/{name}/credit", step=2)["groups"]


ASKED = (
    "runs", "runs/one/metrics?names=reward", "runs/one/team?step=2", "runs/one/steps", "runs/one/evaluations",
    "runs/one/worth", "runs/one/credit?step=1", "runs/one/beside", "runs/one/episodes?q=plan", "runs/one/episodes/1/0",
    "runs/one/episodes/1/0/prompt?action=0/reasoner/0", "runs/one/episodes/1/0/tokens?action=0/reasoner/0",
    "runs/stays/episodes/1/0",
)  # fmt: skip


@BY_NIGHT
@pytest.mark.slow
def test_a_run_that_is_taken_away_moved_replaced_and_written_to_while_it_is_looked_at_is_answered_for_in_words(
    run: Path, tmp_path: Path
) -> None:
    make_run(run.parent / "stays", steps=1)
    spare = shutil.copytree(run, tmp_path / "spare")
    mine, ends = client(run.parent, cache=tmp_path / "cache"), time.monotonic() + 4

    def change() -> None:
        draw, step = np.random.default_rng(0), 1
        while time.monotonic() < ends:
            match draw.integers(5) if run.exists() else -1:
                case -1:
                    shutil.copytree(spare, run)
                case 0:
                    shutil.rmtree(run)
                case 1:
                    run.rename(tmp_path / "moved").rename(run)
                case 2:
                    (run / "config.toml").write_text("half [")
                case 3:
                    shutil.copy(spare / "config.toml", run / "config.toml")
                    (run / "metrics.jsonl").write_text('{"step": 1')
                case _:
                    record(run, (step := step + 1), [attempt(step, 0)])
            time.sleep(0.02)

    def ask(seed: int) -> list[tuple[str, int, str]]:
        draw, found = np.random.default_rng(seed), []
        while time.monotonic() < ends:
            path = ASKED[draw.integers(len(ASKED))]
            answer = mine.get(f"/api/{path}")
            found.append((path, answer.status_code, answer.text))
        return found

    with ThreadPoolExecutor() as pool:
        changing = pool.submit(change)
        answers = [one for found in pool.map(ask, range(3)) for one in found]
        changing.result()
    assert {status for _, status, _ in answers} <= {200, 404, 422}
    assert all("error" in json.loads(text) for _, status, text in answers if status != 200)
    assert {status for path, status, _ in answers if "stays" in path or path == "runs"} == {200}
    shutil.rmtree(run, ignore_errors=True)
    assert mine.get("/api/runs/one/steps").status_code == 404
    shutil.copytree(spare, run)
    time.sleep(2 * SCAN_SECONDS)
    assert [mine.get(f"/api/{path}").status_code for path in ASKED if path != "runs/one/team?step=2"] == [200] * 12


def test_letters_are_small_in_a_search_as_they_are_in_the_index(run: Path) -> None:
    said = ("ΟΔΟΣ", "İzmir", ".*[")
    record(run, 2, [attempt(2, number, text) for number, text in enumerate(said)])
    mine = client(run)
    assert [[e["index"] for e in asked(mine, "runs/one/episodes", q=q)["episodes"]] for q in said] == [[0], [1], [2]]
    assert asked(mine, "runs/one/episodes", q="\0")["total"] == 7


def test_searches_at_once_do_not_take_what_another_has_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run / "episodes" / "step_000001.parquet"
    table = IndexCache(None).load_index(path, FileVersion.from_stat(path.stat()))

    def slowly(_: object, text: str) -> np.ndarray:
        return np.array([text == f"q{number}" for number in range(len(table))])

    monkeypatch.setattr(episode_query, "find_matches", slowly)
    one = FileIndex(EpisodeFile("1", path, FileVersion.from_stat(path.stat())), table)
    episodes = EpisodeTable([one] * 3)

    def search(number: int) -> int:
        return len(episodes.search(EpisodeQuery(q=f"Q{number % (2 * SEARCH_CACHE_SIZE)}"), lambda _: ()))

    with ThreadPoolExecutor(16) as pool:
        assert [*pool.map(search, range(2000))] == [3 if n % 16 < 4 else 0 for n in range(2000)]
