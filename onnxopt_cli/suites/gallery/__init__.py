"""The suite ``gallery``: defects found in public runtimes, each shown by one case."""
