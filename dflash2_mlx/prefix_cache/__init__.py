"""Prefixes of conversations, kept between replies: in memory, and on disk when a folder is given."""

from .cache import PrefixCache, Prepared

__all__ = ["PrefixCache", "Prepared"]
