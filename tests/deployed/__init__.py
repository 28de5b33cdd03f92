"""Exported models under test: every value of the graph handed out, and what a runtime's profile says."""
