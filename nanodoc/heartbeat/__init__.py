"""The trail that a training leaves in shared memory."""
