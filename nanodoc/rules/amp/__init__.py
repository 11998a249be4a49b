"""ND4: mixed precision."""
