"""The program in such a process: it has the package, and nothing of MARFT but this folder. Standard library alone."""
