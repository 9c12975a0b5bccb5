"""One way from a source to what a view needs: episodes are opened, transformed, validated, decided about, normalised, and cut.

`preparation` has the way itself, `options` the options of episodes, `problems` what can be wrong with one, `conventions` what is mended.
Pushes, local passes, inspections, validations, conversions and their workers all use it.
"""
