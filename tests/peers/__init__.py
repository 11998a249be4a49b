"""What other tools for trainings publish that they find."""
