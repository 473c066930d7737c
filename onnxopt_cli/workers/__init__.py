"""Worker processes that run backends, with their supervisors and limits. Workers judge nothing."""
