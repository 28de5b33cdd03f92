"""What must be proven of a program before anything of it runs."""
