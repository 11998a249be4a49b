"""Small helpers on tensors and nestings of them."""
