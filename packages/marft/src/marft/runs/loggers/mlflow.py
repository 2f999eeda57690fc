"""MLflow logger."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from marft.common.texts import cut
from marft.config.parts import SinkPart
from marft.config.settings import Filled, Plain
from marft.runs.loggers.interface import Opening

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ID = "marft.run"  # tag that identifies the run on resume
LONGEST = 4_000  # maximum length of a parameter or tag, in characters
AT_ONCE = 100  # maximum number of parameters in a request
NOT_IN_NAMES = re.compile(r"[^/\w.\- :]")


class MLflow(SinkPart):
    """Logger for an MLflow tracking server or database. A resumed run continues the same MLflow run, found by its tag
    ``marft.run``.
    """

    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    experiment: Filled = "marft"  # name of the experiment; created if missing
    # tracking server or database, such as http://host:5000 or sqlite:///mlflow.db; "": MLFLOW_TRACKING_URI, else
    # MLflow's default
    tracking_uri: str = ""
    run_name: str = ""  # run name in MLflow; "": the name of the MARFT run
    tags: Plain = {}  # additional tags: names and values

    @field_validator("tracking_uri")
    @classmethod
    def _holds_no_password(cls, uri: str) -> str:
        try:
            whole = not urlsplit(uri).password
        except ValueError:
            whole = False
        if not whole:
            raise PydanticCustomError(
                "uri",
                "must hold no password: name it in MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and _PASSWORD",
            )
        return uri

    def open(self, run: Opening) -> _Run:
        """Open the MLflow run, creating it if missing."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.tracking_uri or None)
        found = client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else client.create_experiment(self.experiment)
        there = client.search_runs([experiment], f"tags.`{ID}` = '{run.id}'", max_results=1)
        if there:
            opened = _Run(client, there[0].info.run_id)
            client.update_run(opened.id, status="RUNNING")
            known = there[0].data.params
        else:
            tags = {ID: run.id, **{name: str(text) for name, text in self.tags.items()}}
            made = client.create_run(experiment, tags=tags, run_name=self.run_name or run.name)
            opened, known = _Run(client, made.info.run_id), {}
        named = {allowed(key): cut(str(value), LONGEST) or '""' for key, value in run.parameters.items()}
        new = [Param(key, value) for key, value in named.items() if key not in known]  # MLflow parameters cannot change
        for first in range(0, len(new), AT_ONCE):
            client.log_batch(opened.id, params=new[first : first + AT_ONCE])
        return opened


class _Run:
    def __init__(self, client: MlflowClient, run: str) -> None:
        self._client, self.id, self._notes = client, run, 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self.id, [Metric(allowed(key), value, now, step) for key, value in metrics.items()])

    def note(self, step: int, text: str) -> None:
        self._notes += 1
        self._client.set_tag(self.id, f"note of step {step:06d}.{self._notes}", cut(text, LONGEST))

    def close(self) -> None:
        self._client.set_terminated(self.id)


def allowed(name: str) -> str:
    """Return a metric or parameter name in characters that MLflow accepts.

    >>> allowed("pass@2"), allowed("agents/actor/kl"), allowed("rewards/../x")
    ('pass_2', 'agents/actor/kl', 'rewards_.._x')
    """
    name = NOT_IN_NAMES.sub("_", name)
    return name if posixpath.normpath(name) == name and name[:1] not in "./" else name.replace("/", "_")
