"""The step `fillNull`."""
