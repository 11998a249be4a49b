"""What a training runs on: versions, devices, limits and settings that matter, and a list of
checks."""
