"""The step `downsample`."""
