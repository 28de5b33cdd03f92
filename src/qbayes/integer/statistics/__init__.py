"""Statistics over draws in integers alone, for targets that have no float."""
