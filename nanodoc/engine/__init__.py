"""The step loop: runs, watches, rewinds and examines; never judges."""
