"""ND1: what came in."""
