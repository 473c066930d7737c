"""How roundings move the results of each kind of operator."""
