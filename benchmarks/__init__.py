"""What nanodoc costs: `scripts/bench` measures it, `scripts/gpu_check` runs that on a GPU.

Not shipped. Only `internals` and `devices` reach into nanodoc.
"""
