"""ND5: the autograd graph."""
