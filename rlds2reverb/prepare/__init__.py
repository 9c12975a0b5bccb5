"""One way from a source to what a view needs: episodes are opened, transformed, normalised, validated, decided about, and cut.

`options` says what episodes are to be (`EpisodeOptions`), `preparation` has the way itself (`Preparation`). Pushes, local passes,
inspections, validations, conversions and their workers all go through it.
"""
