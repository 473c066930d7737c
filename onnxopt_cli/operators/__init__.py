"""What an operator is made of: its signature, its call, and the pieces that formulas share."""
