"""Data sets, one file each; the file name is the task's name."""
