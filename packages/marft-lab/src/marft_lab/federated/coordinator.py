"""Federation rounds: request updates from the sites, aggregate the updates, and return the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from marft.common.errors import RunError, UserError
from marft.common.log import get_logger
from marft.runs import lock
from marft_lab.federated.adapter_io import MAX_SENT, Adapters, Tensors, build_files, find_differences, parse_files
from marft_lab.federated.aggregation import average_adapters, rms_distance
from marft_lab.federated.federation_folder import LOCK_FILE, FederationFolder, RoundRecord, damage_message
from marft_lab.federated.messages import Update, is_finite, unpack_files
from marft_lab.federated.privacy import compute_epsilon
from marft_lab.federated.settings import FederationSettings
from marft_lab.federated.site_link import INITIAL_ROUND, SiteFailedError, SiteLink, TransferLog

logger = get_logger(__name__)
Files = Mapping[str, bytes]
MAX_REPORTED_COUNT = 1e15  # maximum reported episodes or tokens per round


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
) -> list[RoundRecord]:
    """Train a federation through all rounds and return the round records.

    Args:
        settings: settings of the federation.
        folder: folder of the federation.
        resume: True to resume after the last finished round.
        on_round: callback for each finished round, while the site processes still run.

    Raises:
        UserError: no federation to resume, foreign files in the folder, or incompatible adapters.
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
        coordinator = _Coordinator(settings, history, links)
        rounds = history.read_rounds() or [coordinator.initialize_sites()]
        while rounds[-1].round < settings.rounds:
            rounds.append(coordinator.run_round(rounds[-1]))
            history.prune(rounds[-1].round, settings.keep_last)
            on_round(rounds[-1])
        last_adapters = coordinator.load_given(rounds[-1])
        replies = coordinator.request_updates(settings.rounds + 1, 0, last_adapters)
        coordinator.check_replies(replies, "were given what came of the last round")
        for site, reason in replies.failed.items():
            logger.warning(
                f"{site} was not given what came of the last round, for it {reason}; --resume gives it again"
            )
        return rounds


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """Coordinator of a federation: settings, folder, and a link to each site."""

    settings: FederationSettings
    history: FederationFolder
    links: Mapping[str, SiteLink]

    def initialize_sites(self) -> RoundRecord:
        """Start each site from the first site's adapters."""
        first = next(iter(self.links))
        try:
            files = unpack_files(self.links[first].request_update(INITIAL_ROUND, 0, {}))
            parse_files(files)
        except (SiteFailedError, ValueError) as error:
            raise RunError(f"site {first!r}, whose adapters all begin with: {error}") from None
        sites = list(self.links)
        record = RoundRecord(0, sites, {}, {}, dict.fromkeys(sites, 0), {}, [0.0, 0.0], self._spent_epsilon(0), {})
        self.history.write_round(record, {}, [files])
        return record

    def load_given(self, record: RoundRecord) -> dict[str, dict[str, bytes]]:
        """Return the adapters given to each site after a round.

        Raises:
            UserError: damaged adapters.
        """
        given_files = self.history.read_given(record)
        site_by_number = {number: site for site, number in record.given.items()}
        for number, site in site_by_number.items():
            try:
                parse_files(given_files[site])
            except ValueError as error:
                folder = self.history.round_folder(record.round) / "given" / str(number)
                raise UserError(damage_message(folder, str(error))) from None
        return given_files

    def run_round(self, previous: RoundRecord) -> RoundRecord:
        """Play a round, and return its record."""
        number, given_files = previous.round + 1, self.load_given(previous)
        replies = self.request_updates(number, self.settings.steps, given_files)
        spent = self._spent_epsilon(number)
        privacy_note = "" if spent is None else f", whose noise is spent (ε {spent:.3g} with it)"
        self.check_replies(replies, f"were heard from in round {number}{privacy_note}")
        sites = list(self.links)
        sent = {site: unpack_files(update) for site, update in replies.updates.items()}
        adapters, configs, bases = _check_compatible(sent, given_files, replies, previous.bases)
        counts = [self._reported_count(replies.updates.get(site)) for site in sites]
        rows = self.settings.combine.mixing_weights(sites, counts)
        distinct = [row for index, row in enumerate(rows) if row not in rows[:index]]
        results = [self._aggregate([adapters[site] for site in sites], row) for row in distinct]
        result_indices = [distinct.index(row) for row in rows]
        norms = {site: update.report["norm"] for site, update in replies.updates.items() if "norm" in update.report}
        aggregated = [results[index] for index in result_indices]
        distances = [_site_distance(list(adapters.values())), _site_distance(aggregated)]
        record = RoundRecord(
            number,
            list(replies.updates),
            replies.failed,
            dict(zip(sites, rows, strict=True)),
            dict(zip(sites, result_indices, strict=True)),
            norms,
            distances,
            self._spent_epsilon(number),
            bases,
        )
        self.history.write_round(record, sent, [build_files(result, configs) for result in results])
        return record

    def request_updates(self, number: int, steps: int, given_files: Mapping[str, Files]) -> RoundReplies:
        """Send concurrent requests to the sites, and collect replies until the round timeout."""
        updates, failed = dict[str, Update](), dict[str, str]()
        timeout, start_time = self.settings.round_timeout_seconds, monotonic()
        with ThreadPoolExecutor(len(self.links)) as threads:
            for link in self.links.values():
                link.accept_requests()
            site_by_future: dict[Future[Update], str] = {
                threads.submit(link.request_update, number, steps, given_files[name]): name
                for name, link in self.links.items()
            }
            pending = set(site_by_future)
            try:
                while pending:
                    remaining = max(timeout - (monotonic() - start_time), 0) if timeout else None
                    completed, pending = wait(pending, remaining, FIRST_COMPLETED)
                    for future in completed:
                        try:
                            update = future.result()
                            if steps:
                                parse_files(unpack_files(update), MAX_SENT)
                                self._check_count(update)
                            updates[site_by_future[future]] = update
                        except SiteFailedError as error:
                            failed[site_by_future[future]] = str(error)
                        except ValueError as error:
                            failed[site_by_future[future]] = f"sent {error}"
                    if not completed:
                        break
            finally:
                for future in pending:
                    self.links[site_by_future[future]].abandon_request()
        failed |= {site_by_future[future]: f"did not answer in {timeout:g} s" for future in pending}
        return RoundReplies(
            {name: updates[name] for name in self.links if name in updates},
            {name: failed[name] for name in self.links if name in failed},
        )

    def check_replies(self, replies: RoundReplies, description: str) -> None:
        """Check that enough sites replied.

        Raises:
            RunError: too few sites replied.
        """
        if len(replies.updates) < self.settings.min_replies:
            reasons = "; ".join(f"{site} {reason}" for site, reason in replies.failed.items())
            raise RunError(
                f"{len(replies.updates)} of {len(self.settings.sites)} sites {description}, and min_sites asks for "
                f"{self.settings.min_replies}: {reasons}. What is over is kept: go on with --resume"
            )

    def _check_count(self, update: Update) -> None:
        """Check a site's reported count, if counts are the weights.

        Raises:
            UserError: the count is missing, not positive or too large.
        """
        counted = self.settings.combine.contribution_unit
        count: Any = update.report.get(counted)
        if counted and not (is_finite(count) and 0 < count <= MAX_REPORTED_COUNT):
            raise UserError(f"{count!r:.40} where its {counted} are asked for")

    def _reported_count(self, update: Update | None) -> float:
        """Return the reported count of a site; 0 if the site skipped the round."""
        counted = self.settings.combine.contribution_unit
        return float(update.report[counted]) if update and counted else float(update is not None)

    def _aggregate(self, adapters: Sequence[Adapters], row: Sequence[float]) -> Adapters:
        return {
            policy: average_adapters([site[policy] for site in adapters], row, self.settings.combine.quantity)
            for policy in adapters[0]
        }

    def _spent_epsilon(self, rounds: int) -> float | None:
        privacy = self.settings.privacy
        return compute_epsilon(rounds, privacy.noise_multiplier, privacy.delta) if privacy.noise_multiplier else None


def _check_compatible(
    sent: Mapping[str, Files], given_files: Mapping[str, Files], replies: RoundReplies, bases: Mapping[str, str]
) -> tuple[dict[str, Adapters], Files, Mapping[str, str]]:
    """Return all sites' adapters, the first site's configurations, and the base models' digests.

    For sites that skipped the round, the last given adapters are used.

    Raises:
        UserError: a site's adapters cannot be combined with the other adapters; the message names the site.
    """
    parsed = {site: parse_files(sent.get(site, before)) for site, before in given_files.items()}
    first, configs = next(iter(parsed.values()))
    for site, (adapters, site_configs) in parsed.items():
        for difference in find_differences(configs, first, site_configs, adapters):
            raise UserError(f"site {site!r} {difference}")
    for site, update in replies.updates.items():
        digests = update.report.get("models", {})
        bases = bases or digests
        if digests != bases:
            raise UserError(
                f"site {site!r} learns on other base models, tokenizers or chat templates than the others: adapters of "
                "different ones mean nothing together; give it the same"
            )
    return {site: adapters for site, (adapters, _) in parsed.items()}, configs, bases


def _site_distance(sites: Sequence[Adapters]) -> float:
    """Return the distance between sites, over the policies' adapters."""
    flattened: list[Tensors] = [
        {f"{p}/{n}": t for p, tensors in site.items() for n, t in tensors.items()} for site in sites
    ]
    return rms_distance(flattened)
