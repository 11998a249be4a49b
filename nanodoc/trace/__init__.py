"""The op-level tracer, source spans, the data-flow graph and its slices."""
