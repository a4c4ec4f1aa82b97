"""A package, so that its fixtures can have pytest's scope of that name."""
