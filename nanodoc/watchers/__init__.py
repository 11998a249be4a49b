"""What a run watches while it runs."""
