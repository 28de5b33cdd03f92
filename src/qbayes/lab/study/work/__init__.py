"""The jobs of a study: who gives them out, who does them, and the rows they make."""
