"""The world of programs: problems with tests, programs that are judged by them, and the judge.

``plain``, ``inside`` and ``replay`` run in the jail, with the standard library alone.
"""
