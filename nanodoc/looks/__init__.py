"""The looks that are taken at a run when its steps are over, on one budget of time."""
