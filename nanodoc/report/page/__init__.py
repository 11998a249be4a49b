"""The report as one self-contained HTML page: no file beside it, no network."""
