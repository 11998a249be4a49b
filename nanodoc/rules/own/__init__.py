"""ND9: nanodoc itself."""
