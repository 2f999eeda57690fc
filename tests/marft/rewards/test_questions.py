"""Questions to a judge: asked once, kept, and asked again only where no score was given."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.common.atomic import digest_of_json
from marft.common.errors import EpisodeFailedError
from marft.rewards import judge as cached_scorer
from marft.rewards.judge import CachedScorer


class Scripted:
    """An endpoint without a server: it gives these replies in turn, those in brackets as cut by their length."""

    name, model, settings = "judge", "big", SimpleNamespace(url="http://judge")

    def __init__(self, *replies: str) -> None:
        self.replies, self.asked = list(replies), list[object]()

    async def run_on_thread(self, function: Any, *arguments: object) -> Any:
        return await function(*arguments)

    async def request_on_thread(self, body: object) -> Any:
        self.asked.append(body)
        await asyncio.sleep(0.0)
        reply = self.replies.pop(0)
        return SimpleNamespace(text=reply.strip("[]"), finish="length" if reply.startswith("[") else "stop")


def score_of(reply: str) -> float | None:
    return float(reply) if reply.isdecimal() else None


def asking(folder: Path | None, *replies: str) -> tuple[CachedScorer, Scripted]:
    endpoint = Scripted(*replies)
    return CachedScorer(cast("Any", endpoint), folder, score_of), endpoint


class TestQuestions:
    def test_the_first_answer_with_a_score_counts_and_the_question_is_put_again_only_without_one(self) -> None:
        asker, endpoint = asking(None, "none", "3", "[4", "<think>5</think>6", "7")

        async def ask() -> list[float]:
            first = await asker.score([{"q": 1}, {"q": 1, "again": True}])
            second = await asker.score([{"q": 2}, {"q": 2, "again": True}])
            return [first, second, await asker.score([{"q": 3}, {"q": 3, "again": True}])]

        assert asyncio.run(ask()) == [3.0, 6.0, 7.0]
        assert endpoint.asked == [{"q": 1}, {"q": 1, "again": True}, {"q": 2}, {"q": 2, "again": True}, {"q": 3}]
        assert asker.counts == {"questions": 3, "requests": 5}

    @pytest.mark.parametrize(
        ("last", "why"), [("[4", r"cut by its length \(max_new_tokens\)"), ("x" * 201, f"'{'x' * 200}'$")]
    )
    def test_without_a_score_it_fails_with_the_last_answer_and_is_asked_anew(self, last: str, why: str) -> None:
        asker, endpoint = asking(None, "no", last, "8")

        async def ask() -> float:
            with pytest.raises(EpisodeFailedError, match=f"'judge' gave no score in 2 answers, the last: .*{why}"):
                await asker.score([{"q": 1}, {"q": 2}])
            return await asker.score([{"q": 1}, {"q": 2}])

        assert asyncio.run(ask()) == 8.0
        assert len(endpoint.asked) == 3
        assert asker.counts == {"questions": 2, "requests": 3}

    def test_equal_questions_at_a_time_are_asked_once_and_one_that_is_cancelled_leaves_it_to_the_others(self) -> None:
        asker, endpoint = asking(None, "5")

        async def ask() -> float:
            first, second = (asyncio.create_task(asker.score([{"q": 1}])) for _ in range(2))
            await asyncio.sleep(0.0)
            first.cancel()
            return await second

        assert asyncio.run(ask()) == 5.0
        assert len(endpoint.asked) == 1
        assert asker.counts == {"questions": 2, "cache_hits": 1, "requests": 1}

    def test_a_failure_that_nobody_waits_for_any_more_is_told_to_nobody(self) -> None:
        asker, _ = asking(None, "none")
        told: list[object] = []

        async def ask() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
            task = asyncio.create_task(asker.score([{"q": 1}]))
            await asyncio.sleep(0.0)
            task.cancel()
            for _ in range(9):
                await asyncio.sleep(0.0)

        asyncio.run(ask())
        assert told == []

    def test_scores_are_kept_in_a_folder_under_the_digest_of_the_question(self, tmp_path: Path) -> None:
        asker, _ = asking(tmp_path, "7")
        assert asyncio.run(asker.score([{"q": 1}])) == 7.0
        name = digest_of_json(["http://judge", {"q": 1}])
        (file,) = tmp_path.rglob("*.json")
        assert file == tmp_path / name[:2] / f"{name}.json"
        table = {"url": "http://judge", "model": "big", "reply": "7", "finish": "stop"}
        assert json.loads(file.read_text()) == table
        again, endpoint = asking(tmp_path)
        assert asyncio.run(again.score([{"q": 1}])) == 7.0
        file.unlink()
        assert asyncio.run(again.score([{"q": 1}])) == 7.0  # in memory
        assert (endpoint.asked, again.counts) == ([], {"questions": 2, "cache_hits": 2})

    @pytest.mark.parametrize(
        "kept",
        [
            "{", "[]", "{}", '{"reply": "7"}', '{"reply": "7", "finish": "length"}', '{"reply": 7, "finish": "stop"}',
            '{"reply": "no", "finish": "stop"}', '{"reply": "<think>7", "finish": "stop"}', "[" * 100_000,
        ],
    )  # fmt: skip
    def test_what_is_kept_without_a_score_is_asked_for_again_and_kept_anew(self, kept: str, tmp_path: Path) -> None:
        name = digest_of_json(["http://judge", {"q": 1}])
        file = tmp_path / name[:2] / f"{name}.json"
        file.parent.mkdir()
        file.write_text(kept)
        asker, _ = asking(tmp_path, "8")
        assert asyncio.run(asker.score([{"q": 1}])) == 8.0
        assert json.loads(file.read_text())["reply"] == "8"
        assert asker.counts == {"questions": 1, "requests": 1}

    def test_the_oldest_score_in_memory_is_forgotten_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cached_scorer, "MAX_CACHED_SCORES", 2)
        asker, endpoint = asking(None, "1", "2", "3", "4")

        async def ask() -> list[float]:
            return [await asker.score([{"q": number}]) for number in (1, 2, 3, 2, 3, 1)]

        assert asyncio.run(ask()) == [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]
        assert endpoint.asked == [{"q": 1}, {"q": 2}, {"q": 3}, {"q": 1}]

    def test_a_question_is_the_same_whatever_the_order_of_its_keys_and_for_one_endpoint_alone(self) -> None:
        one = digest_of_json(["a", {"x": 1, "y": 2}])
        assert one == digest_of_json(["a", {"y": 2, "x": 1}])
        assert len({one, digest_of_json(["b", {"x": 1, "y": 2}]), digest_of_json(["a", {"x": 2, "y": 2}])}) == 3
