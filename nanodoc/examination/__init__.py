"""Looks at steps that are run again: what went wrong, where."""
