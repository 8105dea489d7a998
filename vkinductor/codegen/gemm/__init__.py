"""Matrix products: what is multiplied (problem), how it can be cut (tiles), which cut is taken (choose), lowerings.

A further kind of kernel adds a tile class with its template to its own module and its candidates to ``choose.py``.
"""

from .lower import addmm, int_mm, mm

__all__ = ["addmm", "int_mm", "mm"]
