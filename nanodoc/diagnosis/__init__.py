"""Findings, claims on root causes, and how they are ranked; without torch."""
