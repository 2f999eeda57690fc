"""Programming environment: problems with tests, programs, and their judge.

``plain_values``, ``sandbox_program`` and ``replay`` run in the jail, with only the standard library.
"""
