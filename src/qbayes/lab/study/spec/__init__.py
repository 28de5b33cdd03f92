"""A study as it is written: its sections, its axes, and the studies that come with qbayes."""
