"""The C kernels of the fast backends, and the library that they are compiled into."""
