"""Programs on disk: one file, read with bounds before anything is built."""
