"""What is known about error messages: data in YAML, one file per family, and the search in it."""

from nanodoc.explain.knowledge.base import Entry, Explanation, entries, explained

__all__ = ["Entry", "Explanation", "entries", "explained"]
