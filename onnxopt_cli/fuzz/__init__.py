"""Looking for failures of a backend with examples that nobody wrote down."""
