"""The store of a study: stages, rows and tables on disk."""
