"""Error messages explained: pasted text is parsed, the exception at its root is looked up. Nothing
here imports torch."""
