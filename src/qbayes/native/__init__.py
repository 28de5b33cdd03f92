"""C that is compiled once per user, kept in the user's cache beside its hash, and loaded when they match."""
