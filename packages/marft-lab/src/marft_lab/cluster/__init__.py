"""Run processes on remote machines, through Ray.

Ray is imported only if a recipe requests a cluster.
"""
