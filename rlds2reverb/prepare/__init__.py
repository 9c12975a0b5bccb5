"""One way from a source to what a view needs: episodes are opened, transformed, normalised, validated, decided about, and cut.

`options` has the options of episodes (`EpisodeOptions`), `preparation` the way itself (`Preparation`). Pushes, local passes, inspections,
validations, conversions and their workers all use it.
"""
