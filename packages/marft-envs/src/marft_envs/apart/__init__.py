"""Environments of packages that want other versions of libraries, each in a process on a Python of its own."""
