"""The targets that a program can be exported to, one file each."""
