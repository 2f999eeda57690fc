"""Learning in several ranks, each a process with its own device.

The first rank is the main process. Its :class:`~marft.trainer.ranks.distributed_learner.DistributedLearner` starts the
other ranks (``devices.py``) and sends each operation to them as a message (``messages.py``). Every rank, the first one
included, executes the operation in its ``RankWorker`` (``rank_worker.py``). Meanwhile the ranks exchange gradients and
decisions in their ``RankGroup`` (``group.py``), which the rest of training knows as ``Ranks`` (``interface.py``).
"""
