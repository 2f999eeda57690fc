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
from marft_lab.federated.adapter_io import MAX_SENT, Adapters, Tensors, build_files, find_differences, parse_files
from marft_lab.federated.aggregation import average_adapters, rms_distance
from marft_lab.federated.federation_folder import LOCK_FILE, FederationFolder, RoundRecord, damage_message
from marft_lab.federated.messages import Update, is_finite, unpack_files
from marft_lab.federated.privacy import compute_epsilon
from marft_lab.federated.settings import FederationSettings
from marft_lab.federated.site_link import INITIAL_ROUND, SiteFailedError, SiteLink
from marft_lab.federated.transfer_log import TransferLog

Files = Mapping[str, bytes]
MAX_REPORTED_COUNT = 1e15  # maximum reported episodes or tokens per round


class Combiner(Protocol):
    """Interface for the aggregation rule in ``[combine]``."""

    def mixing_weights(self, sites: Sequence[str], counts: Sequence[float]) -> list[list[float]]:
        """Return mixing weights, shape [sites, sites]: a row per site over the sites' adapters.

        Args:
            sites: names of the sites.
            counts: reported count of each site, shape [sites]; 1 if counts are not requested. A count of 0 means that
                the site skipped the round; its last given adapters stand for the site.
        """
        ...


@dataclass(frozen=True, slots=True)
class RoundReplies:
    """Sites' replies to a round's requests."""

    updates: Mapping[str, Update]
    failed: Mapping[str, str]  # missing sites, with the reasons


def federate(
    settings: FederationSettings,
    folder: Path,
    *,
    resume: bool = False,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> list[RoundRecord]:
    """Train a federation through all rounds and return the round records.

    Args:
        settings: settings of the federation.
        folder: folder of the federation.
        resume: True to resume after the last finished round.
        on_round: callback for each finished round, while the site processes still run.
        note: callback for warnings.

    Raises:
        ValueError: no federation to resume, foreign files in the folder, or incompatible adapters.
        RunError: too few sites replied. Finished rounds are kept.
    """
    history = FederationFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock.lock_folder(folder / LOCK_FILE, "or give this federation another name"), ExitStack() as exit_stack:
        history.create_or_resume(settings, resume)
        transfer_log = TransferLog(history.transfer_log)
        links = {
            name: SiteLink(name, settings, history.id, site_folder, transfer_log)
            for name, site_folder in settings.site_folders(folder).items()
        }
        for link in links.values():
            exit_stack.callback(link.close)
        rounds = history.read_rounds() or [_initialize_sites(settings, history, links)]
        while rounds[-1].round < settings.rounds:
            rounds.append(_run_round(settings, history, links, rounds))
            history.prune(rounds[-1].round, settings.keep_last)
            on_round(rounds[-1])
        last_adapters = _load_given(history, rounds[-1])
        replies = _request_updates(settings, links, settings.rounds + 1, 0, last_adapters)
        _check_replies(settings, replies, "were given what came of the last round")
        for site, reason in replies.failed.items():
            note(f"{site} was not given what came of the last round, for it {reason}; --resume gives it again")
        return rounds


def _initialize_sites(
    settings: FederationSettings, history: FederationFolder, links: Mapping[str, SiteLink]
) -> RoundRecord:
    """Start each site from the first site's adapters."""
    first = next(iter(links))
    try:
        files = unpack_files(links[first].request_update(INITIAL_ROUND, 0, {}))
        parse_files(files)
    except (SiteFailedError, ValueError) as error:
        raise RunError(f"site {first!r}, whose adapters all begin with: {error}") from None
    sites = list(links)
    record = RoundRecord(0, sites, {}, {}, dict.fromkeys(sites, 0), {}, [0.0, 0.0], _spent_epsilon(settings, 0), {})
    history.write_round(record, {}, [files])
    return record


def _load_given(history: FederationFolder, record: RoundRecord) -> dict[str, dict[str, bytes]]:
    """Return the adapters given to each site after a round.

    Raises:
        ValueError: damaged adapters.
    """
    given_files = history.read_given(record)
    site_by_number = {number: site for site, number in record.given.items()}
    for number, site in site_by_number.items():
        try:
            parse_files(given_files[site])
        except ValueError as error:
            raise ValueError(
                damage_message(history.round_folder(record.round) / "given" / str(number), str(error))
            ) from None
    return given_files


def _run_round(
    settings: FederationSettings,
    history: FederationFolder,
    links: Mapping[str, SiteLink],
    previous_rounds: Sequence[RoundRecord],
) -> RoundRecord:
    number, given_files = previous_rounds[-1].round + 1, _load_given(history, previous_rounds[-1])
    replies = _request_updates(settings, links, number, settings.steps, given_files)
    spent = _spent_epsilon(settings, number)
    privacy_note = "" if spent is None else f", whose noise is spent (ε {spent:.3g} with it)"
    _check_replies(settings, replies, f"were heard from in round {number}{privacy_note}")
    sites = list(links)
    sent = {site: unpack_files(update) for site, update in replies.updates.items()}
    adapters, configs, bases = _check_compatible(sent, given_files, replies, previous_rounds[-1].bases)
    counts = [_reported_count(settings, replies.updates.get(site)) for site in sites]
    rows = cast("Combiner", settings.combine).mixing_weights(sites, counts)
    distinct = [row for index, row in enumerate(rows) if row not in rows[:index]]
    results = [_aggregate(settings, [adapters[site] for site in sites], row) for row in distinct]
    result_indices = [distinct.index(row) for row in rows]
    norms = {site: update.report["norm"] for site, update in replies.updates.items() if "norm" in update.report}
    distances = [_site_distance(list(adapters.values())), _site_distance([results[index] for index in result_indices])]
    record = RoundRecord(
        number,
        list(replies.updates),
        replies.failed,
        dict(zip(sites, rows, strict=True)),
        dict(zip(sites, result_indices, strict=True)),
        norms,
        distances,
        _spent_epsilon(settings, number),
        bases,
    )
    history.write_round(record, sent, [build_files(result, configs) for result in results])
    return record


def _request_updates(
    settings: FederationSettings,
    links: Mapping[str, SiteLink],
    number: int,
    steps: int,
    given_files: Mapping[str, Files],
) -> RoundReplies:
    """Send concurrent requests to the sites, and collect replies until the round timeout."""
    updates, failed = dict[str, Update](), dict[str, str]()
    start_time = monotonic()
    with ThreadPoolExecutor(len(links)) as threads:
        for link in links.values():
            link.accept_requests()
        site_by_future: dict[Future[Update], str] = {
            threads.submit(link.request_update, number, steps, given_files[name]): name for name, link in links.items()
        }
        pending = set(site_by_future)
        try:
            while pending:
                remaining = (
                    settings.round_timeout_seconds - (monotonic() - start_time)
                    if settings.round_timeout_seconds
                    else None
                )
                completed, pending = wait(pending, None if remaining is None else max(remaining, 0), FIRST_COMPLETED)
                for future in completed:
                    try:
                        update = future.result()
                        if steps:
                            parse_files(unpack_files(update), MAX_SENT)
                            _check_count(settings, update)
                        updates[site_by_future[future]] = update
                    except SiteFailedError as error:
                        failed[site_by_future[future]] = str(error)
                    except ValueError as error:
                        failed[site_by_future[future]] = f"sent {error}"
                if not completed:
                    break
        finally:
            for future in pending:
                links[site_by_future[future]].abandon_request()
    failed |= {site_by_future[future]: f"did not answer in {settings.round_timeout_seconds:g} s" for future in pending}
    order = list(links)
    return RoundReplies(
        {name: updates[name] for name in order if name in updates},
        {name: failed[name] for name in order if name in failed},
    )


def _check_replies(settings: FederationSettings, replies: RoundReplies, description: str) -> None:
    """Check that enough sites replied.

    Raises:
        RunError: too few sites replied.
    """
    if len(replies.updates) < settings.min_replies:
        reasons = "; ".join(f"{site} {reason}" for site, reason in replies.failed.items())
        raise RunError(
            f"{len(replies.updates)} of {len(settings.sites)} sites {description}, and min_sites asks for "
            f"{settings.min_replies}: {reasons}. What is over is kept: go on with --resume"
        )


def _check_compatible(
    sent: Mapping[str, Files], given_files: Mapping[str, Files], replies: RoundReplies, bases: Mapping[str, str]
) -> tuple[dict[str, Adapters], Files, Mapping[str, str]]:
    """Return all sites' adapters, the first site's configurations, and the base models' digests.

    For sites that skipped the round, the last given adapters are used.

    Raises:
        ValueError: a site's adapters cannot be combined with the other adapters; the message names the site.
    """
    parsed = {site: parse_files(sent.get(site, before)) for site, before in given_files.items()}
    first, configs = next(iter(parsed.values()))
    for site, (adapters, site_configs) in parsed.items():
        for difference in find_differences(configs, first, site_configs, adapters):
            raise ValueError(f"site {site!r} {difference}")
    for site, update in replies.updates.items():
        digests = update.report.get("models", {})
        bases = bases or digests
        if digests != bases:
            raise ValueError(
                f"site {site!r} learns on other base models, tokenizers or chat templates than the others: adapters of "
                "different ones mean nothing together; give it the same"
            )
    return {site: adapters for site, (adapters, _) in parsed.items()}, configs, bases


def _check_count(settings: FederationSettings, update: Update) -> None:
    """Check a site's reported count, if counts are the weights.

    Raises:
        ValueError: the count is missing, not positive or too large.
    """
    counted = settings.combine.count_unit
    count: Any = update.report.get(counted)
    if counted and not (is_finite(count) and 0 < count <= MAX_REPORTED_COUNT):
        raise ValueError(f"{count!r:.40} where its {counted} are asked for")


def _reported_count(settings: FederationSettings, update: Update | None) -> float:
    """Return the reported count of a site; 0 if the site skipped the round."""
    counted = settings.combine.count_unit
    return float(update.report[counted]) if update and counted else float(update is not None)


def _aggregate(settings: FederationSettings, adapters: Sequence[Adapters], row: Sequence[float]) -> Adapters:
    return {
        policy: average_adapters([site[policy] for site in adapters], row, settings.combine.quantity)
        for policy in adapters[0]
    }


def _site_distance(sites: Sequence[Adapters]) -> float:
    """Return the distance between sites, over the policies' adapters."""
    flattened: list[Tensors] = [
        {f"{p}/{n}": t for p, tensors in site.items() for n, t in tensors.items()} for site in sites
    ]
    return rms_distance(flattened)


def _spent_epsilon(settings: FederationSettings, rounds: int) -> float | None:
    privacy = settings.privacy
    return compute_epsilon(rounds, privacy.noise_multiplier, privacy.delta) if privacy.noise_multiplier else None
