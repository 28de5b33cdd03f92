"""Do the tests notice when the source is wrong? ``make mutants``; what it does is told in ``mutants.run``."""
