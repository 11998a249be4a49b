"""Per-step measurements that never synchronise the device by themselves."""
