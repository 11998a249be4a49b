"""ND7: runs that end early."""
