"""Experiments on one step: remedies and probes tried by replay."""
