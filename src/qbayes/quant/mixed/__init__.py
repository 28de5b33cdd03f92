"""Mixed precision: bits for every layer, by how much its rounding does to error and uncertainty."""
