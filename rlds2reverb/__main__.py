"""`python -m rlds2reverb` is the command `rlds2reverb`."""

from rlds2reverb.cli import main

main()
