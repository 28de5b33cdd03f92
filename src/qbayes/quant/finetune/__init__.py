"""``quantize`` and ``fine_tune``: the job, distillation, temperature, the loop."""
