"""One episode to look at: in the terminal, as a picture, as a film, as a page.

`finding` reads it, `contents` says what is in it and how each column is shown, `terminal` draws that as text, and `saving` writes the
files: `sheet` (png), `film` and `videos` (gif, mp4), `page` (html).
"""
