"""The scoreboard: backends side by side, as a static site made of the logs of their runs."""
