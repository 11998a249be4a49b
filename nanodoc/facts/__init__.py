"""What an examination found, as plain frozen facts, without torch."""
