"""Worker processes that run backends, with their supervisors and limits; they judge no results."""
