"""The suite ``operators``: generated nodes of every operator, and the generators that draw them."""
