"""Learning in several ranks, each a process with its own device.

The first rank is the main process. Its :class:`~marft.trainer.ranks.distributed_learner.DistributedLearner` starts the
other ranks (``devices.py``) and sends each operation to them as a message (``messages.py``). Every rank, the first one
included, executes the operation in its ``RankWorker`` (``rank_worker.py``). Meanwhile the ranks exchange gradients and
decisions in their ``RankGroup`` (``group.py``), which the rest of training knows as ``Ranks`` (``interface.py``).

A base model with ``models.*.ranks`` is trained by these ranks only. Other ranks hold its names and shapes, but no
weights, and no optimizers of its policies. The first rank holds all models, because it samples and saves. Gradients are
summed over the ranks of a base; log-probabilities and critic features are gathered from all ranks. After a step, the
first rank of a base sends new weights and moments to the first rank of the run.
"""
