"""Loader for competitions from folders prepared by MLE-bench.

Files of a competition:

    NAME/description.md                 or in public/
    NAME/config.yaml                    MLE-bench's file that names the metric; the recipe may name it instead
    NAME/leaderboard.csv                with a column score
    NAME/public/                        or prepared/public/: files for the team, including sample_submission.csv
    NAME/private/                       or prepared/private/: one table with the correct answers
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath

import yaml

from marft.agents.sandbox.settings import SandboxSettings
from marft.common.atomic import read_text, regular
from marft.config.settings import did_you_mean
from marft_envs.mle.competition import Competition, InvalidError, predictions
from marft_envs.mle.medals import Leaderboard
from marft_envs.mle.metrics import CALLED, METRICS

SAMPLES = ("sample_submission.csv", "sampleSubmission.csv")
ANSWERS = ("answers.csv", "test.csv", "gold_submission.csv")
MOST_MB = 32  # maximum megabytes of public files; every program run gets a fresh copy


def found_in(folder: str) -> dict[str, Path]:
    """Return competition folders by name: the folder itself, or its subfolders.

    Raises:
        ValueError: the folder holds no competition.
    """
    place = Path(folder)
    places = [place] if _parts(place) else sorted(one for one in place.glob("*") if _parts(one))
    if not places:
        raise ValueError(
            f"environment.path: {folder} holds no competition; one is a folder with public/ and private/ (or both in "
            "prepared/), description.md and leaderboard.csv"
        )
    return {one.name: one for one in places}


def read(folder: Path, metrics: Mapping[str, str]) -> Competition:
    """Load a competition from its folder.

    Args:
        folder: folder of the competition.
        metrics: metric by competition name; overrides the competition's configuration.

    Raises:
        ValueError: a part is missing or invalid. The message names it and the remedy.
    """
    parts = _parts(folder)
    assert parts, "competitions have been looked for"
    public, private = parts
    given = _public(folder, public)
    sample = next((given[name] for name in SAMPLES if name in given), None)
    if sample is None:
        raise ValueError(
            f"environment: {folder}: {public.name}/ has no sample_submission.csv, which says what is predicted"
        )
    metric = _metric(folder, metrics)
    description = next((one for one in (folder, public) if (one / "description.md").is_file()), None)
    if description is None:
        raise ValueError(f"environment: {folder} has no description.md, which is what teams are told")
    columns = _columns(folder, sample)
    answers = _answers(folder, private, columns)
    told = description / "description.md"
    with _read(told):
        text = read_text(told)
    made = Competition(text, given, answers, columns, metric, _leaderboard(folder, metric))
    _check(folder, made, sample)
    return made


def _parts(folder: Path) -> tuple[Path, Path] | None:
    for place in (folder, folder / "prepared"):
        if (place / "public").is_dir() and (place / "private").is_dir():
            return place / "public", place / "private"
    return None


def _public(folder: Path, public: Path) -> dict[str, bytes]:
    files = sorted(file for file in public.rglob("*") if file.is_file())
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    if megabytes > MOST_MB:
        raise ValueError(
            f"environment: {folder}: its public files have {megabytes:.0f} MB, and each run of a program is given all "
            f"of them; take a competition of at most {MOST_MB} MB, or a part of its rows"
        )
    return {str(file.relative_to(public)): file.read_bytes() for file in files}


def _metric(folder: Path, metrics: Mapping[str, str]) -> str:
    named = metrics.get(folder.name, "")
    config = folder / "config.yaml"
    if not named and config.is_file():
        try:
            read_config = yaml.safe_load(config.read_text(encoding="utf-8"))
            named = str(read_config["grader"]["name"])
        except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"environment: {config} names no grader ({error}); name one: metrics") from error
    plain = named.lower().replace("_", "-").replace(" ", "-")
    metric = next((name for name in METRICS if name.replace("_", "-") == plain), CALLED.get(plain, ""))
    if not metric:
        what = f"is graded by {named!r}, which is none of ours" if named else "does not say how it is graded"
        raise ValueError(
            f"environment: {folder} {what}{did_you_mean(named, METRICS)}; name its metric: metrics = "
            f"{{ {folder.name} = 'rmse' }}"
        )
    return metric


def _columns(folder: Path, sample: bytes) -> tuple[str, str]:
    with _read(folder / "sample_submission.csv"):
        header = next(csv.reader(sample.decode("utf-8-sig").splitlines()), [])
    if len(header) != 2:
        raise ValueError(
            f"environment: {folder}: its submissions have {len(header)} columns; those of an id and one prediction "
            "can be graded here"
        )
    return header[0].strip(), header[1].strip()


def _answers(folder: Path, private: Path, columns: tuple[str, str]) -> dict[str, str]:
    """Read the answers by id, from the first table with both columns."""
    tables = sorted(private.glob("*.csv"), key=lambda file: (file.name not in ANSWERS, file.name))
    for table in tables:
        with _read(table), regular(table).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows and set(columns) <= set(rows[0]):
            found = [((row[columns[0]] or "").strip(), row[columns[1]]) for row in rows]
            twice = [name for name, times in Counter(name for name, _ in found).items() if times > 1]
            short = [name for name, answer in found if answer is None]
            for what, names in (("comes twice", twice), ("has no answer", short)):
                if names:
                    raise ValueError(f"environment: {table}: {columns[0]} {names[0]!r} {what}")
            return {name: answer.strip() for name, answer in found}
    raise ValueError(
        f"environment: {folder}: no table in {private.name}/ has the columns of a submission: {', '.join(columns)}"
    )


def _leaderboard(folder: Path, metric: str) -> Leaderboard:
    file = folder / "leaderboard.csv"
    if not file.is_file():
        raise ValueError(f"environment: {folder} has no leaderboard.csv, which medals are given by")
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            scores = [float(row["score"]) for row in csv.DictReader(opened)]
        if not all(map(math.isfinite, scores)):
            raise ValueError("one is not finite")
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"environment: {file} has no column score of numbers: {error}") from error
    if not scores:
        raise ValueError(f"environment: {file} holds no teams")
    lower = METRICS[metric].lower_is_better
    if (scores[0] < scores[-1]) != lower and scores[0] != scores[-1]:
        raise ValueError(
            f"environment: {file} begins with {scores[0]:g} and ends with {scores[-1]:g}, and the best by {metric} has "
            f"the {'lowest' if lower else 'highest'} score; order it from the best on, or name another metric"
        )
    return Leaderboard(sorted(scores, reverse=not lower), lower)


@contextmanager
def _read(file: Path) -> Iterator[None]:
    """Context manager: name the unreadable file in errors."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"environment: {file} cannot be read as text in UTF-8, or as a table of it: {error}"
        ) from error


def check_room(name: str, made: Competition, limits: SandboxSettings) -> None:
    """Check that the sandbox limits leave room for the public files and for correct predictions.

    Raises:
        ValueError: no program could earn a reward under these limits.
    """
    places = {parent for file in made.public for parent in PurePath(file).parents}
    needed = len(made.public) + len(places) + 2  # plus the program and its submission
    if needed > limits.files:
        raise ValueError(
            f"environment: {name}: its {len(made.public):,} public files take {needed:,} of the {limits.files:,} that "
            f"a run of a program may have; set environment.limits.files = {needed}"
        )
    kilobytes = math.ceil(sum(len(f"{key},{value}\n".encode()) for key, value in made.answers.items()) / 1024)
    if kilobytes > limits.output_kb:
        raise ValueError(
            f"environment: {name}: right predictions alone take {kilobytes:,} KB, and a program may give back "
            f"{limits.output_kb:,}; set environment.limits.output_kb = {2 * kilobytes}"
        )


def _check(folder: Path, made: Competition, sample: bytes) -> None:
    """Check that the sample submission matches the answers, and that the answers can be graded."""
    try:
        predictions(sample.decode("utf-8-sig"), made.columns, list(made.answers))
    except (InvalidError, UnicodeDecodeError) as error:
        raise ValueError(f"environment: {folder}: its sample does not fit its answers: {error}") from error
    own = io.StringIO()
    csv.writer(own).writerows([made.columns, *made.answers.items()])
    try:
        made.score(own.getvalue())
    except InvalidError as error:
        raise ValueError(
            f"environment: {folder}: its own answers cannot be graded by {made.metric}: {error}"
        ) from error
