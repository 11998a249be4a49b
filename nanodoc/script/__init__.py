"""A training script as it is: run as `python` would run it, its step found while it runs."""
