"""The registry of executors: where the jobs of a study run."""
