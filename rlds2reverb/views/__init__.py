"""Views: how an episode is cut into rows and items. One file a view; see `base` for the algebra."""
