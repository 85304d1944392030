"""The Berkeley Function Calling Leaderboard's offline categories as katgym environments."""
