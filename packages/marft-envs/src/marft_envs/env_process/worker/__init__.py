"""Program inside an environment process.

It imports the package, the standard library and this folder, and nothing else from MARFT.
"""
