"""The user's code runs in a child process; the parent watches it, outlives it, and owns the report.
Nothing but the child imports torch."""
