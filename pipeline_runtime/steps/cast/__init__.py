"""The step `cast`."""
