"""Flex-MG: the Markov game of an environment and a team, and ``play``, which turns a task into an episode.

Nothing here imports torch. Engines and renderers are protocols here and implemented in ``marft.engines``.
"""
