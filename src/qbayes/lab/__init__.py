"""What measures the rest: studies, reports, benchmarks and the paper's claims. The core never imports it."""
