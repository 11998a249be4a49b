"""One rule, or one tight family of rules, a file: `Evidence -> findings`."""
