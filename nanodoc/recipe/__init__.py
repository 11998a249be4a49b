"""What the user trains: the `Recipe`, its loader and its adapters."""
