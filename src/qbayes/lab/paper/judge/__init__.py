"""How a claim is judged: margins, rules, verdicts."""
