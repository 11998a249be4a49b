"""The report and one renderer per format."""
