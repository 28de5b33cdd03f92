"""Studies: a question as data. One complete run, the axes that vary, and a store that survives anything."""
