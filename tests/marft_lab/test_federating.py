"""The rounds of a federation: who is asked, who is left out, what is kept, and where it goes on."""

from __future__ import annotations

import dataclasses
import json
import math
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from marft.common.errors import RunError
from marft.config.bundled import bundled_recipe
from marft.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from marft_lab.federated import coordinator, site_link
from marft_lab.federated.adapter_io import build_files, parse_files, serialize_weights
from marft_lab.federated.aggregation import average_adapters
from marft_lab.federated.combiner import Combiner
from marft_lab.federated.coordinator import federate
from marft_lab.federated.federation_folder import FederationFolder, RoundRecord
from marft_lab.federated.messages import Assignment, Update, pack_files
from marft_lab.federated.privacy import compute_epsilon
from marft_lab.federated.settings import FederationSettings, parse_federation
from marft_lab.federated.site_link import SiteFailedError, SiteLink, TransferLog
from tests.marft.cli.test_cli import run
from tests.marft_lab.test_federated import CONFIGURATION, adapter
from tests.runs import contents

CONFIGURATIONS = {f"actor/{CONFIG_FILE}": json.dumps(CONFIGURATION).encode()}


def settings(**changes: Any) -> FederationSettings:
    sites = {name: {"recipe": name} for name in ("north", "south", "east")}
    return parse_federation({"name": "test", "sites": sites, "rounds": 3, **changes}, "test", Path())


class Learner:
    """A site without a process: each round moves its numbers by ones of its own."""

    asked: list[tuple[str, int, int]] = []
    silent: set[str] = set()
    lost: dict[str, str] = {}
    lost_in = 2
    other: dict[str, Any] = {}

    def __init__(self, name: str, settings: FederationSettings, id_: str, folder: Path, ledger: TransferLog) -> None:
        self.name, self.settings, self.ended = name, settings, Event()

    def request_update(self, round_: int, steps: int, files: Mapping[str, bytes]) -> Update:
        self.asked.append((self.name, round_, steps))
        if self.ended.is_set():
            raise SiteFailedError("was ended")
        if self.name in self.silent and round_ == 2:
            self.ended.wait()
            raise SiteFailedError("was ended")
        if self.name in self.lost and round_ == self.lost_in:
            raise SiteFailedError(self.lost[self.name])
        if not files:
            return Update(0, {}, *pack_files(build_files({"actor": adapter(0)}, CONFIGURATIONS)))
        adapters, _ = parse_files(files)
        moved = {
            name: tensor + 0.1 * adapter(sum(self.name.encode()) + round_)[name]
            for name, tensor in adapters["actor"].items()
        }
        about = {"models": {"actor": "base"}, "norm": 1.0, "episodes": len(self.name), "tokens": 9}
        about |= self.other if self.name == "south" else {}
        return Update(
            round_,
            about,
            *pack_files(build_files({"actor": about.pop("sends", moved)}, CONFIGURATIONS) if steps else {}),
        )

    def abandon_request(self) -> None:
        self.ended.set()

    def accept_requests(self) -> None:
        self.ended.clear()

    def close(self) -> None:
        self.ended.set()


@pytest.fixture(autouse=True)
def learners(monkeypatch: pytest.MonkeyPatch) -> type[Learner]:
    monkeypatch.setattr(coordinator, "SiteLink", Learner)
    for name, value in {"asked": [], "silent": set(), "lost": {}, "lost_in": 2, "other": {}}.items():
        monkeypatch.setattr(Learner, name, value)
    return Learner


def stopping_after(number: int) -> Any:
    def tell(one: RoundRecord) -> None:
        if one.round == number:
            raise KeyboardInterrupt

    return tell


def last(folder: Path) -> dict[str, bytes]:
    return contents(FederationFolder(folder).round_folder(3))


@pytest.mark.parametrize("combine", ["average", "gossip", "alone"])
def test_a_federation_that_was_stopped_equals_one_that_never_was(tmp_path: Path, combine: str) -> None:
    whole = federate(settings(combine={"name": combine}), tmp_path / "whole")
    for round_ in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            federate(
                settings(combine={"name": combine}),
                tmp_path / "stopped",
                resume=round_ > 1,
                on_round=stopping_after(round_),
            )
    assert federate(settings(combine={"name": combine}), tmp_path / "stopped", resume=True) == whole
    assert last(tmp_path / "stopped") == last(tmp_path / "whole")


def test_all_begin_with_the_adapters_of_the_first_and_end_with_the_average(
    tmp_path: Path, learners: type[Learner]
) -> None:
    federate(settings(combine={"name": "average", "weight": "episodes", "quantity": "factors"}), tmp_path)
    assert learners.asked[0] == ("north", 0, 0)
    assert {asked for asked in learners.asked if asked[1] == 4} == {(name, 4, 0) for name in ("north", "south", "east")}
    history = FederationFolder(tmp_path)
    sent = {site: parse_files({n.removeprefix(f"sent/{site}/"): d for n, d in last(tmp_path).items() if n.startswith(f"sent/{site}/")})[0]
            for site in ("north", "south", "east")}  # fmt: skip
    wanted = average_adapters([each["actor"] for each in sent.values()], [5 / 14, 5 / 14, 4 / 14], "factors")
    given = history.read_given(history.read_rounds()[-1])
    assert all(files[f"actor/{WEIGHTS_FILE}"] == serialize_weights(wanted) for files in given.values())


def test_a_site_that_does_not_answer_is_named_and_left_out_and_comes_back(
    tmp_path: Path, learners: type[Learner]
) -> None:
    learners.silent = {"south"}
    rounds = federate(settings(min_sites=2, round_timeout_seconds=0.2), tmp_path)
    assert rounds[2].left_out == {"south": "did not answer in 0.2 s"}
    assert list(rounds[2].took_part) == ["north", "east"]
    assert rounds[2].mixing["south"] == [0.5, 0.0, 0.5]  # it goes on from the average of the others
    assert list(rounds[3].took_part) == ["north", "south", "east"]


def test_all_sites_together_have_the_patience_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three answers 7 s after the one before, and whoever has answered when 10 s are over is heard."""
    now, waited = [0.0], list[float | None]()

    def wait(open_: set[Any], seconds: float | None, until: str) -> tuple[set[Any], set[Any]]:
        first = min(open_, key=id)
        assert wait_for([first], 20).done
        waited.append(seconds)
        now[0] += 7
        return {first}, open_ - {first}

    monkeypatch.setattr(coordinator, "monotonic", lambda: now[0])
    monkeypatch.setattr(coordinator, "wait", wait)
    federate(settings(rounds=1, round_timeout_seconds=10), tmp_path)
    assert waited == [10, 3, 0, 10, 3, 0]  # of the only round, and of the end


def test_gossip_goes_on_around_a_site_that_is_lost(tmp_path: Path, learners: type[Learner]) -> None:
    learners.lost = {"south": "was killed"}
    rounds = federate(settings(min_sites=2, combine={"name": "gossip", "graph": "line"}), tmp_path)
    assert rounds[2].left_out == {"south": "was killed"}
    assert rounds[2].mixing["south"] == [0.0, 1.0, 0.0]


def test_too_few_sites_end_it_by_name_and_it_goes_on(tmp_path: Path, learners: type[Learner]) -> None:
    learners.lost = {"south": "was killed (SIGKILL), 3 times", "east": "cannot"}
    with pytest.raises(
        RunError, match=r"1 of 3 sites were heard from in round 2, and min_sites asks for 2: south was killed"
    ):
        federate(settings(min_sites=2), tmp_path)
    learners.lost = {}
    assert [one.round for one in federate(settings(min_sites=2), tmp_path, resume=True)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"models": {"actor": "another"}}, "'south' learns on other base models"),
        ({"sends": adapter(0, rank=3)}, "'south' has a 'actor' of other layers or ranks"),
    ],
)
def test_what_cannot_be_averaged_is_refused_by_the_sites_name(
    tmp_path: Path, learners: type[Learner], other: dict[str, Any], said: str
) -> None:
    learners.other = other
    with pytest.raises(ValueError, match=said):
        federate(settings(combine={"name": "average", "weight": "episodes"}), tmp_path)


def test_all_sites_stay_on_the_base_models_of_the_rounds_before(tmp_path: Path, learners: type[Learner]) -> None:
    """Also where nobody on those takes part any more."""
    with pytest.raises(KeyboardInterrupt):
        federate(settings(rounds=2, min_sites=1), tmp_path, on_round=stopping_after(1))
    learners.lost, learners.other = {"north": "was killed", "east": "was killed"}, {"models": {"actor": "another"}}
    with pytest.raises(ValueError, match="'south' learns on other base models"):
        federate(settings(rounds=2, min_sites=1), tmp_path, resume=True)


def test_a_norm_is_known_of_those_that_tell_it(
    tmp_path: Path, learners: type[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = learners.request_update

    def ask(one: Learner, round_: int, steps: int, files: Mapping[str, bytes]) -> Update:
        update = real(one, round_, steps, files)
        about = {key: value for key, value in update.report.items() if (one.name, key) != ("south", "norm")}
        return dataclasses.replace(update, report=about)

    monkeypatch.setattr(learners, "request_update", ask)
    rounds = federate(settings(rounds=1), tmp_path)
    assert rounds[-1].norms == {"north": 1.0, "east": 1.0}


@pytest.mark.parametrize(
    ("combine", "given"),
    [("average", {"north": 0, "south": 0, "east": 0}), ("alone", {"north": 0, "south": 1, "east": 2})],
)
def test_what_several_sites_go_on_from_is_kept_once(tmp_path: Path, combine: str, given: dict[str, int]) -> None:
    rounds = federate(settings(rounds=1, combine={"name": combine}), tmp_path)
    assert rounds[-1].given == given
    kept = {int(folder.name) for folder in (FederationFolder(tmp_path).round_folder(1) / "given").iterdir()}
    assert kept == set(given.values())


def test_what_all_begin_with_is_looked_at(
    tmp_path: Path, learners: type[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "request_update", lambda *_: Update(0, {}, *pack_files({"actor/words": b"a canary"})))
    with pytest.raises(RunError, match="site 'north', whose adapters all begin with: a file that is no adapter's"):
        federate(settings(), tmp_path)


def test_what_is_no_adapter_leaves_its_site_out(tmp_path: Path, learners: type[Learner]) -> None:
    learners.other = {"sends": {"no layer": adapter(0).popitem()[1]}}
    rounds = federate(settings(min_sites=2), tmp_path)
    assert {site: why.split(":")[0] for site, why in rounds[-1].left_out.items()} == {
        "south": "sent actor/adapter_model.safetensors holds what is no adapter's"
    }
    assert rounds[-1].took_part == ["north", "east"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
@pytest.mark.parametrize("file", ["federation.json", "rounds/round_000001/round.json"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str, text: str) -> None:
    federate(settings(), tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=f"{file} is damaged .*; put a copy back"):
        federate(settings(), tmp_path, resume=True)


def test_there_is_one_federation_in_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave out --resume"):
        federate(settings(), tmp_path, resume=True)
    federate(settings(), tmp_path)
    with pytest.raises(ValueError, match="already; go on with it"):
        federate(settings(), tmp_path)
    with pytest.raises(ValueError, match="steps is another"):
        federate(settings(steps=9), tmp_path, resume=True)


def test_each_site_is_asked_once_in_a_round_and_at_last_given_what_came_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed, over = list[tuple[Any, ...]](), list[str](), list[int]()

    class Watched(Learner):
        def __init__(
            self, name: str, settings: FederationSettings, id_: str, folder: Path, ledger: TransferLog
        ) -> None:
            super().__init__(name, settings, id_, folder, ledger)
            made.append((name, settings, id_, folder, ledger.path))

        def close(self) -> None:
            closed.append(self.name)
            super().close()

    monkeypatch.setattr(coordinator, "SiteLink", Watched)
    asked, folder = settings(rounds=2, steps=5, keep_last=1), tmp_path / "not" / "there"
    rounds = federate(asked, folder, on_round=lambda one: over.append(one.round))
    sites = ["north", "south", "east"]
    id_ = json.loads((folder / "federation.json").read_text())["id"]
    assert made == [(site, asked, id_, asked.site_folders(folder)[site], folder / "ledger.jsonl") for site in sites]
    assert sorted(closed) == sorted(sites)
    each = [(site, number, steps) for number, steps in ((1, 5), (2, 5), (3, 0)) for site in sorted(sites)]
    assert Learner.asked[0] == ("north", site_link.INITIAL_ROUND, 0)
    assert sorted(Learner.asked[1:], key=lambda one: (one[1], one[0])) == each
    assert over == [1, 2]
    assert rounds[0] == RoundRecord(0, sites, {}, {}, dict.fromkeys(sites, 0), {}, [0.0, 0.0], None, {})
    assert [(folder / f"rounds/round_00000{number}/given").is_dir() for number in range(3)] == [False, False, True]
    weights = next((folder / "rounds/round_000002/given/0").rglob(WEIGHTS_FILE))
    weights.write_bytes(b"none")
    with pytest.raises(ValueError, match=r"round_000002/given/0 is damaged .*; put a copy back"):
        federate(asked, folder, resume=True)


def test_a_federation_of_which_too_few_are_given_the_end_says_so(tmp_path: Path, learners: type[Learner]) -> None:
    learners.lost, learners.lost_in = {"east": "was killed", "south": "was killed"}, 2
    with pytest.raises(RunError, match="1 of 3 sites were given what came of the last round"):
        federate(settings(rounds=1, min_sites=2), tmp_path)


def test_nobody_elses_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds thesis\.txt, which no federation wrote"):
        federate(settings(), tmp_path)


def test_a_site_that_misses_the_end_is_named_and_given_it_later(
    tmp_path: Path, learners: type[Learner], caplog: pytest.LogCaptureFixture
) -> None:
    learners.lost, learners.lost_in = {"east": "was killed"}, 4
    federate(settings(min_sites=2), tmp_path)
    assert caplog.messages == [
        "east was not given what came of the last round, for it was killed; --resume gives it again"
    ]
    learners.lost = {}
    federate(settings(min_sites=2), tmp_path, resume=True)
    assert len(caplog.messages) == 1


def test_adapters_of_old_rounds_go_and_what_is_known_of_them_stays(tmp_path: Path) -> None:
    federate(settings(keep_last=1), tmp_path)
    history = FederationFolder(tmp_path)
    assert [one.round for one in history.read_rounds()] == [0, 1, 2, 3]
    assert [(history.round_folder(number) / "given").is_dir() for number in range(4)] == [False, False, False, True]


def test_noise_is_accounted_for(tmp_path: Path) -> None:
    rounds = federate(settings(privacy={"clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-3}), tmp_path)
    assert [one.epsilon for one in rounds] == [compute_epsilon(number, 2.0, 1e-3) for number in range(4)]


@pytest.mark.slow
def test_a_site_is_told_what_the_settings_say(tmp_path: Path) -> None:
    asked = settings(rounds=3, steps=5, privacy={"clip": 1.5, "noise_multiplier": 2.0})
    told = SiteLink(
        "north", asked, "0123", tmp_path / "north", TransferLog(tmp_path / "ledger.jsonl")
    )._assignment.federation
    assert (told["id"], told["seed"], told["steps"]) == ("0123", asked.seed, 15)
    assert (told["clip"], told["noise"]) == (1.5, 2.0)


class TestAProcess:
    @pytest.fixture
    def asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        real = site_link.python_command
        monkeypatch.setattr(
            site_link, "python_command", lambda _, descriptor: real("tests.federated_program", descriptor)
        )

        def ask(does: str) -> SiteLink:
            changed = settings(max_retries=1)
            sites = {**changed.sites, "north": changed.sites["north"].model_copy(update={"recipe": does})}
            return SiteLink(
                "north",
                changed.model_copy(update={"sites": sites}),
                "0123",
                tmp_path / "north",
                TransferLog(tmp_path / "ledger.jsonl"),
            )

        return ask

    def test_that_ends_is_started_again_and_all_that_passed_is_in_the_ledger(self, asked: Any, tmp_path: Path) -> None:
        one = asked("ends once")
        try:
            assert one.request_update(1, 1, {"a": b"123"}).files == {"a": 3}
        finally:
            one.close()
        rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
        assert [(row["from"], row["to"], row["file"], row["bytes"]) for row in rows] == [
            ("coordinator", "north", "a", 3), ("coordinator", "north", "a", 3), ("north", "coordinator", "a", 3),
            ("north", "coordinator", "about", 14),
        ]  # fmt: skip

    def test_that_is_gone_before_it_hears_what_it_is_was_tried(
        self, asked: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = site_link.send

        def send(end: Any, message: Any) -> None:
            if isinstance(message, Assignment):
                raise BrokenPipeError
            real(end, message)

        monkeypatch.setattr(site_link, "send", send)
        monkeypatch.setattr(
            "marft.common.processes.child_process.END_SECONDS", 0.2
        )  # it waits to be told, and is not asked to end
        one = asked("ends once")
        with pytest.raises(SiteFailedError, match=", 2 times"):
            one.request_update(1, 1, {"a": b"123"})
        one.close()

    def test_that_cannot_be_started_says_why(self, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(site_link, "ChildProcess", full)
        with pytest.raises(SiteFailedError, match=r"cannot be started \(.*Resource temporarily unavailable\), 2 times"):
            asked("ends once").request_update(1, 1, {"a": b"123"})

    def test_that_is_being_started_is_ended_once_it_is_there(self, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever waits for its answer would wait for ever."""
        one, starting, real = asked("hangs"), Event(), site_link.ChildProcess

        def slowly(*given: Any, **more: Any) -> Any:
            starting.set()
            time.sleep(0.3)
            return real(*given, **more)

        monkeypatch.setattr(site_link, "ChildProcess", slowly)
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(one.request_update, 1, 1, {"a": b"123"})
            starting.wait()
            one.abandon_request()
            with pytest.raises(SiteFailedError):
                waits.result(20)
        one.close()

    @pytest.mark.parametrize(
        "update",
        [
            Update(1, {}, {"a": 5}, np.zeros(3, np.uint8)),
            Update(1, {"norm": "far"}, {}, np.zeros(0, np.uint8)),
            Update(1, {"norm": math.inf}, {}, np.zeros(0, np.uint8)),
            Update(1, {"models": ["a"]}, {}, np.zeros(0, np.uint8)),
        ],
        ids=["sizes", "words", "infinite", "list"],
    )
    def test_what_no_site_sends_is_that_sites_loss(
        self, asked: Any, monkeypatch: pytest.MonkeyPatch, update: Update
    ) -> None:
        one = asked("ends once")
        monkeypatch.setattr(site_link, "receive", lambda _: update)
        with pytest.raises(SiteFailedError, match=r"sent what nobody asked for .*, 2 times"):
            one.request_update(1, 1, {"a": b"123"})
        one.close()

    def test_an_answer_of_another_round_is_none(self, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        one = asked("ends once")
        monkeypatch.setattr(site_link, "receive", lambda _: Update(2, {}, *pack_files({})))
        with pytest.raises(SiteFailedError, match="answered Update in the place of round 1"):
            one.request_update(1, 1, {"a": b"123"})
        one.close()

    @pytest.mark.parametrize(
        ("does", "said"), [("ends", "exit status 3.*, 2 times"), ("fails", "cannot; .*site.log says why")]
    )
    def test_that_cannot_is_told(self, asked: Any, does: str, said: str) -> None:
        one = asked(does)
        with pytest.raises(SiteFailedError, match=said):
            one.request_update(1, 1, {"a": b"123"})
        one.close()


def begun(folder: Path, resume: bool = False, **changes: Any) -> FederationFolder:
    history = FederationFolder(folder)
    history.create_or_resume(settings(**changes), resume)
    return history


def test_the_mark_of_a_federation_keeps_its_id_and_its_settings_can_be_read(tmp_path: Path) -> None:
    edges = {"combine": {"name": "gossip", "graph": "edges", "edges": [["north", "south"], ["south", "east"]]}}
    first = begun(tmp_path, **edges)
    assert len(first.id) == 16
    assert first.sites == {"north", "south", "east"}
    text = (tmp_path / "federation.json").read_text(encoding="utf-8")
    assert text.startswith('{\n  "format": "a federation of MARFT, 1",\n  "id": ')
    assert text.endswith("}\n")
    table = tomllib.loads((tmp_path / "federation.toml").read_text(encoding="utf-8"))
    assert table == json.loads(text)["settings"]
    assert begun(tmp_path, resume=True, **edges).id == first.id == json.loads(text)["id"]


class Bounded(Combiner):
    """Of one's own, with a key that may be left out."""

    bound: float | None = None

    def mixing_weights(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        return [[1 / len(sites)] * len(sites)] * len(sites)


def test_a_key_without_a_value_is_not_among_the_settings_that_are_kept(tmp_path: Path) -> None:
    """TOML has no word for that."""
    named = {"name": f"{__name__}:Bounded"}
    begun(tmp_path, combine=named)
    assert tomllib.loads((tmp_path / "federation.toml").read_text(encoding="utf-8"))["combine"] == {
        **named, "quantity": "products",
    }  # fmt: skip
    begun(tmp_path, resume=True, combine=named)


def test_files_are_given_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Of whatever file system; so are the lines of the ledger."""
    history, names = FederationFolder(tmp_path), [f"policy{at * 7 % 20:02}/{CONFIG_FILE}" for at in range(20)]
    one = RoundRecord(1, ["north"], {}, {}, {"north": 0}, {}, [0.0, 0.0], None, {})
    history.write_round(one, {}, [{name: name.encode() for name in names}])
    assert list(history.read_given(one)["north"].items()) == [(name, name.encode()) for name in sorted(names)]


def test_what_a_crash_left_is_nobodys_and_goes(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-0123456789abcdef").write_text("half a mark")
    begun(tmp_path)
    (tmp_path / "rounds" / ".unfinished-0123456789abcdef").mkdir(parents=True)
    begun(tmp_path, resume=True)
    assert list((tmp_path / "rounds").iterdir()) == []


def test_a_round_is_read_where_it_belongs_and_for_the_sites_that_there_are(tmp_path: Path) -> None:
    history = begun(tmp_path)
    one = RoundRecord(0, ["north"], {}, {}, dict.fromkeys(("north", "south", "east"), 0), {}, [0.0, 0.0], None, {})
    history.write_round(one, {}, [])
    file = history.round_folder(0) / "round.json"
    assert file.read_text(encoding="utf-8").startswith('{\n "round": 0,\n "took_part": [\n  "north"\n ],')
    assert file.read_text(encoding="utf-8").endswith("}\n")
    assert history.read_rounds() == [one]
    history.round_folder(0).rename(tmp_path / "rounds" / "round_000000b")
    with pytest.raises(ValueError, match="it is of round 0, in the place of round 0"):
        history.read_rounds()
    (tmp_path / "rounds" / "round_000000b").rename(history.round_folder(0))
    file.write_text(json.dumps({**dataclasses.asdict(one), "given": {"north": 0, "west": 0}}))
    with pytest.raises(ValueError, match="it gives to north, west"):
        history.read_rounds()


@pytest.mark.parametrize(
    ("last", "keep", "kept"), [(3, 1, [3]), (3, 2, [2, 3]), (1, 4, [0, 1, 2, 3]), (3, 4, [0, 1, 2, 3])]
)
def test_adapters_of_the_newest_rounds_stay(tmp_path: Path, last: int, keep: int, kept: list[int]) -> None:
    history = FederationFolder(tmp_path)
    folders = {number: [history.round_folder(number) / kind for kind in ("sent", "given")] for number in range(4)}
    for both in folders.values():
        for folder in both:
            folder.mkdir(parents=True)
    history.prune(last, keep)
    assert [number for number, both in folders.items() if all(folder.is_dir() for folder in both)] == kept
    assert [number for number, both in folders.items() if any(folder.is_dir() for folder in both)] == kept


def test_rounds_read_back_as_they_were_written(tmp_path: Path) -> None:
    federate(settings(), tmp_path)
    one = FederationFolder(tmp_path).read_rounds()[-1]
    assert json.loads(json.dumps(dataclasses.asdict(one))) == dataclasses.asdict(one)
    assert one.apart[0] > 0.1
    assert one.apart[1] == pytest.approx(0, abs=1e-9)


def test_a_dry_run_reads_all_recipes_and_names_each_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('[sites.north]\nrecipe = "demo"\n[sites.south]\nrecipe = "demo"\n', encoding="utf-8")
    assert "north, south" in run(capsys, "federate", str(path), "--dry-run")

    path.write_text(
        '[sites.north]\nrecipe = "deno"\n[sites.south]\nrecipe = "demo"\n[sites.east]\nrecipe = "demo"\n'
        'overrides = { "policies.reasoner.train" = "full" }\n',
        encoding="utf-8",
    )
    said = run(capsys, "federate", str(path), "--dry-run", status=2)
    assert "sites.north: " in said
    assert "sites.east: " in said
    assert "south" not in said
    assert [*tmp_path.iterdir()] == [path]


def test_a_dry_run_reads_sites_as_apart_as_they_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Modules that are called alike are no trouble where each site has a process."""
    demo, path = bundled_recipe("demo").read_text(), tmp_path / "sites.toml"
    for site in ("North", "South"):
        folder = tmp_path / site
        folder.mkdir()
        (folder / "world.py").write_text(
            f"from marft.envs.reasoning_gym import ReasoningGym\nclass {site}(ReasoningGym): pass\n", encoding="utf-8"
        )
        (folder / "own.toml").write_text(demo.replace('"reasoning_gym"', f'"world:{site}"'), encoding="utf-8")
    path.write_text("".join(f'[sites.{site}]\nrecipe = "{site}/own.toml"\n' for site in ("North", "South")))
    assert "North, South" in run(capsys, "federate", str(path), "--dry-run")
