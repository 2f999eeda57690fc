"""A learner in plain loops, written from the papers: float64, one row of tokens at a time, every gradient by autograd.

Whole learner steps of ``marft.trainer`` are held to it (``tests/marft/rollout/test_whole_steps.py``, ``test_several_steps.py``). It shares no code with
``src/``: it reads recorded episodes and the settings of a recipe as data, and takes the order of minibatches and turns
from the documented random streams.
"""
