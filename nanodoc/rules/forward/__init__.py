"""ND2: forward numerics."""
