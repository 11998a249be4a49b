"""ND8: distributed runs."""
