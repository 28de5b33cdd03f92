"""Many small networks of one structure, trained as one batched program."""
