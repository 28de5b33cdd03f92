"""Programs written by hand, op by op, with random codes."""
