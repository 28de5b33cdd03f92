"""A program, and how it is kept in a file, costed and described."""
