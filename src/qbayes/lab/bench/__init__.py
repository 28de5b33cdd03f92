"""Speed and size, measured: integers beside what a user would otherwise run, in one interleaved run."""
