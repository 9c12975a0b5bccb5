"""Views: how an episode is cut into rows and items. One file per view; `base` says what a view is, `cuts` what it makes."""
