"""ND3: backward numerics."""
