"""From a study to runs with keys, and from runs to jobs."""
