"""A program as plain C99: the generator, its runtime of headers, and what a board needs."""
