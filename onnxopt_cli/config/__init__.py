"""The settings of a run: declared once, for commands, profiles, Python and logs."""
