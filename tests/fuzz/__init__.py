"""Random programs on every way of running them, as many as asked for: ``make fuzz``."""
