"""What a study's rows say: groups, pairs, intervals, checks."""
