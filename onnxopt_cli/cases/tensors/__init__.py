"""Values of cases, as files and messages hold them."""
