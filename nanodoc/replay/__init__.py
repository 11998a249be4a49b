"""One step, its start kept and put back, and the step run again."""
