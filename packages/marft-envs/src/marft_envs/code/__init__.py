"""Programming environment: problems with tests, programs, and their judge.

``plain``, ``inside`` and ``replay`` run in the jail, with only the standard library.
"""
