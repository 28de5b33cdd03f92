"""The paper: its claims, and how they are judged."""
