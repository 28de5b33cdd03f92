"""Small plain networks, tasks they can learn, and their posteriors by all four methods: tests share them."""
