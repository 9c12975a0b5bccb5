"""One small file per library that learners are written with; each needs that library, and nothing else does."""
