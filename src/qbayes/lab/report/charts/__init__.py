"""Charts and figures as values, and how they are drawn for papers."""
