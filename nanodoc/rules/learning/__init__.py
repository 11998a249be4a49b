"""ND6: what does not learn."""
