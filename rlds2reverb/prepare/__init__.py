"""One way from a source to what a view needs: episodes are opened, transformed, validated, decided about, normalised, and cut.

| file | has |
| --- | --- |
| `preparation` | the way itself |
| `options` | the options of episodes |
| `problems`, `checks`, `endings` | what can be wrong: its codes, how it shows in one episode, and by comparison with others |
| `standard`, `policy` | what makes an episode good, and what happens to a bad one |
| `image_files` | what image files take, and what decoding changes in them |
| `conventions` | what is mended in good episodes |
| `findings`, `progress` | what was found, and how far the reading is |

Pushes, local passes, inspections, validations, conversions and their workers all use it.
"""
