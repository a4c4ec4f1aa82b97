"""Every law of scaling that a user might pick over every scenario, on a simulated plant."""
