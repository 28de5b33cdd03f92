"""The arithmetic that training, simulation and integers share: grids, fixed point, exact products, ε."""
