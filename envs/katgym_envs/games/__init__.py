"""Games with verifiable rewards: a treasure hunt of our own, OpenSpiel's games, chess."""
