"""What people look at: the page of an inspection, an episode in the terminal or as a file, and what notebooks show.

One layer with four outlets. `text` says how a number is written and what is cut short, `images.kind` what is an image; `html` writes all
markup, `pictures` makes all pictures.
"""
