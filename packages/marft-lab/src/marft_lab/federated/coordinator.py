"""Federation rounds: request updates from the sites, aggregate the updates, and return the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, cast

from marft.common.errors import RunError
from marft.runs import lock
from marft_lab.federated.history import LOCK, History, Round, damaged
from marft_lab.federated.ledger import Ledger
from marft_lab.federated.link import BEGINNING, Link, SiteLostError
from marft_lab.federated.mixing import distance, mixed
from marft_lab.federated.parcels import SENT, Adapters, Tensors, differences, files_with, opened
from marft_lab.federated.privacy import epsilon
from marft_lab.federated.settings import FederationSettings
from marft_lab.federated.words import Update, files_of, is_finite

Files = Mapping[str, bytes]
MOST_PLAYED = 1e15  # maximum reported episodes or tokens per round


class Combiner(Protocol):
    """Interface for the aggregation rule in ``[combine]``."""

    def mixing(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        """Return mixing weights, shape [sites, sites]: a row per site over the sites' adapters.

        Args:
            sites: names of the sites.
            counts: reported count of each site, shape [sites]; 1 if counts are not requested. A count of 0 means that
                the site skipped the round; its last given adapters stand for the site.
        """
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """Sites' replies to a round's requests."""

    updates: Mapping[str, Update]
    lost: Mapping[str, str]  # missing sites, with the reasons


def federate(
    settings: FederationSettings, folder: Path, *, resume: bool = False,
    tell: Callable[[Round], None] = lambda _: None, note: Callable[[str], None] = lambda _: None,
) -> list[Round]:  # fmt: skip
    """Train a federation through all rounds and return the round records.

    Args:
        settings: settings of the federation.
        folder: folder of the federation.
        resume: True to resume after the last finished round.
        tell: callback for each finished round, while the site processes still run.
        note: callback for warnings.

    Raises:
        ValueError: no federation to resume, foreign files in the folder, or incompatible adapters.
        RunError: too few sites replied. Finished rounds are kept.
    """
    history = History(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock.folder_held(folder / LOCK, "or give this federation another name"), ExitStack() as open_:
        history.begin(settings, resume)
        ledger = Ledger(history.ledger)
        links = {
            name: Link(name, settings, history.id, place, ledger)
            for name, place in settings.site_folders(folder).items()
        }
        for link in links.values():
            open_.callback(link.close)
        rounds = history.rounds() or [_begun(settings, history, links)]
        while rounds[-1].round < settings.rounds:
            rounds.append(_round(settings, history, links, rounds))
            history.let_go(rounds[-1].round, settings.keep_last)
            tell(rounds[-1])
        given = _given(history, rounds[-1])
        heard = _ask(settings, links, settings.rounds + 1, 0, given)
        _needed(settings, heard, "were given what came of the last round")
        for site, why in heard.lost.items():
            note(f"{site} was not given what came of the last round, for it {why}; --resume gives it again")
        return rounds


def _begun(settings: FederationSettings, history: History, links: Mapping[str, Link]) -> Round:
    """Start each site from the first site's adapters."""
    first = next(iter(links))
    try:
        files = files_of(links[first].ask(BEGINNING, 0, {}))
        opened(files)
    except (SiteLostError, ValueError) as error:
        raise RunError(f"site {first!r}, whose adapters all begin with: {error}") from None
    sites = list(links)
    found = Round(0, sites, {}, {}, dict.fromkeys(sites, 0), {}, [0.0, 0.0], _spent(settings, 0), {})
    history.write(found, {}, [files])
    return found


def _given(history: History, one: Round) -> dict[str, dict[str, bytes]]:
    """Return the adapters given to each site after a round.

    Raises:
        ValueError: damaged adapters.
    """
    found = history.given(one)
    one_of_each = {number: site for site, number in one.given.items()}
    for number, site in one_of_each.items():
        try:
            opened(found[site])
        except ValueError as error:
            raise ValueError(damaged(history.folder(one.round) / "given" / str(number), str(error))) from None
    return found


def _round(settings: FederationSettings, history: History, links: Mapping[str, Link], before: Sequence[Round]) -> Round:
    number, given = before[-1].round + 1, _given(history, before[-1])
    heard = _ask(settings, links, number, settings.steps, given)
    spent = _spent(settings, number)
    told = "" if spent is None else f", whose noise is spent (ε {spent:.3g} with it)"
    _needed(settings, heard, f"were heard from in round {number}{told}")
    sites = list(links)
    sent = {site: files_of(update) for site, update in heard.updates.items()}
    adapters, configs, bases = _held_together(sent, given, heard, before[-1].bases)
    counts = [_count(settings, heard.updates.get(site)) for site in sites]
    rows = cast("Combiner", settings.combine).mixing(sites, counts)
    distinct = [row for at, row in enumerate(rows) if row not in rows[:at]]
    results = [_combined(settings, [adapters[site] for site in sites], row) for row in distinct]
    goes_on = [distinct.index(row) for row in rows]
    norms = {site: update.about["norm"] for site, update in heard.updates.items() if "norm" in update.about}
    apart = [_apart(list(adapters.values())), _apart([results[at] for at in goes_on])]
    found = Round(
        number, list(heard.updates), heard.lost, dict(zip(sites, rows, strict=True)),
        dict(zip(sites, goes_on, strict=True)), norms, apart, _spent(settings, number), bases,
    )  # fmt: skip
    history.write(found, sent, [files_with(result, configs) for result in results])
    return found


def _ask(
    settings: FederationSettings, links: Mapping[str, Link], number: int, steps: int, given: Mapping[str, Files]
) -> Heard:
    """Send concurrent requests to the sites, and collect replies until the round timeout."""
    updates, lost = dict[str, Update](), dict[str, str]()
    began = monotonic()
    with ThreadPoolExecutor(len(links)) as threads:
        for link in links.values():
            link.again()
        asked: dict[Future[Update], str] = {
            threads.submit(link.ask, number, steps, given[name]): name for name, link in links.items()
        }
        open_ = set(asked)
        try:
            while open_:
                left = settings.patience_seconds - (monotonic() - began) if settings.patience_seconds else None
                done, open_ = wait(open_, None if left is None else max(left, 0), FIRST_COMPLETED)
                for one in done:
                    try:
                        update = one.result()
                        if steps:
                            opened(files_of(update), SENT)
                            _check_count(settings, update)
                        updates[asked[one]] = update
                    except SiteLostError as error:
                        lost[asked[one]] = str(error)
                    except ValueError as error:
                        lost[asked[one]] = f"sent {error}"
                if not done:
                    break
        finally:
            for one in open_:
                links[asked[one]].leave_out()
    lost |= {asked[one]: f"did not answer in {settings.patience_seconds:g} s" for one in open_}
    order = list(links)
    return Heard({name: updates[name] for name in order if name in updates},
                 {name: lost[name] for name in order if name in lost})  # fmt: skip


def _needed(settings: FederationSettings, heard: Heard, what: str) -> None:
    """Check that enough sites replied.

    Raises:
        RunError: too few sites replied.
    """
    if len(heard.updates) < settings.needed:
        why = "; ".join(f"{site} {reason}" for site, reason in heard.lost.items())
        raise RunError(
            f"{len(heard.updates)} of {len(settings.sites)} sites {what}, and at_least asks for {settings.needed}: "
            f"{why}. What is over is kept: go on with --resume"
        )


def _held_together(
    sent: Mapping[str, Files], given: Mapping[str, Files], heard: Heard, bases: Mapping[str, str]
) -> tuple[dict[str, Adapters], Files, Mapping[str, str]]:
    """Return all sites' adapters, the first site's configurations, and the base models' digests.

    For sites that skipped the round, the last given adapters are used.

    Raises:
        ValueError: a site's adapters cannot be combined with the other adapters; the message names the site.
    """
    found = {site: opened(sent.get(site, before)) for site, before in given.items()}
    first, configs = next(iter(found.values()))
    for site, (adapters, theirs) in found.items():
        for difference in differences(configs, first, theirs, adapters):
            raise ValueError(f"site {site!r} {difference}")
    for site, update in heard.updates.items():
        here = update.about.get("models", {})
        bases = bases or here
        if here != bases:
            raise ValueError(
                f"site {site!r} learns on other base models, tokenizers or chat templates than the others: adapters of "
                "different ones mean nothing together; give it the same"
            )
    return {site: adapters for site, (adapters, _) in found.items()}, configs, bases


def _check_count(settings: FederationSettings, update: Update) -> None:
    """Check a site's reported count, if counts are the weights.

    Raises:
        ValueError: the count is missing, not positive or too large.
    """
    counted = settings.combine.counted
    count: Any = update.about.get(counted)
    if counted and not (is_finite(count) and 0 < count <= MOST_PLAYED):
        raise ValueError(f"{count!r:.40} where its {counted} are asked for")


def _count(settings: FederationSettings, update: Update | None) -> float:
    """Return the reported count of a site; 0 if the site skipped the round."""
    counted = settings.combine.counted
    return float(update.about[counted]) if update and counted else float(update is not None)


def _combined(settings: FederationSettings, adapters: Sequence[Adapters], row: Sequence[float]) -> Adapters:
    return {policy: mixed([each[policy] for each in adapters], row, settings.combine.of) for policy in adapters[0]}


def _apart(sites: Sequence[Adapters]) -> float:
    """Return the distance between sites, over the policies' adapters."""
    whole: list[Tensors] = [
        {f"{p}/{n}": t for p, tensors in each.items() for n, t in tensors.items()} for each in sites
    ]
    return distance(whole)


def _spent(settings: FederationSettings, rounds: int) -> float | None:
    privacy = settings.privacy
    return epsilon(rounds, privacy.noise, privacy.delta) if privacy.noise else None
