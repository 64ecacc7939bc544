"""Slow NumPy float64 references, written from the specification alone.

Each module states its maths in the docstring and computes it with plain
loops.  They never import the library, so they can serve as its oracle.
"""
