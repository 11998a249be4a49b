"""Small sick training runs with known causes."""
