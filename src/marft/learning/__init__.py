"""From episodes to better policies: credit, objective, schedule, and the learner that applies them.

Imports nothing of ``marft.game``: whatever recorded the episodes, learning sees only ``marft.types``.
"""
