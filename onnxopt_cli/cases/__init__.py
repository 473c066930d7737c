"""Where cases come from and go to."""
