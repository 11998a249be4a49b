"""The clinic's patients as tables, one for each family of rules."""
