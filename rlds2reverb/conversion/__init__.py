"""Any source into any destination: `convert` has the main loop, `job` what is made of an episode, `place` the folders, `verify` the comparison."""
