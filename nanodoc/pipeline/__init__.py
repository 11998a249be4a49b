"""The wiring of the rooms: entrypoint → recipe → engine → experiments → rules → fixes → report. One
file per command. Nothing is imported here: the process that only watches a training has no torch.
"""
