"""The loop over the steps, and what came of it."""
